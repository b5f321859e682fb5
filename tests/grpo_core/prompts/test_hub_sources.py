"""Data sets by name and id, from a folder laid out like the hub's; facts of every kind of source."""

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import UserError
from grpo_core.prompts import facts, sources
from grpo_core.prompts.config import SourceConfig
from grpo_core.prompts.facts import source_facts
from grpo_core.prompts.readers import named_dataset, read_named
from grpo_core.prompts.sources import hub_parts, load_rows


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the hub's data set of MATH: two rows in each of its subsets."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "hub"
    folder.mkdir()
    names = [subset for _, subset, _ in hub_parts(SourceConfig(source="math"))]
    for name in names:
        rows = [{"problem": f"{name} {n}", "solution": rf"\boxed{{{n}}}", "level": f"Level {n}"} for n in (1, 2)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}.jsonl\n" for name in names
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")

    def from_folder(read: Any) -> Any:
        return lambda name, subset, split, *, on_hub: read(str(folder), subset, split, on_hub=False)

    monkeypatch.setattr(sources, "read_named", from_folder(read_named))
    monkeypatch.setattr(facts, "named_dataset", from_folder(named_dataset))
    return folder


def test_math_by_name_is_all_of_its_subsets(hub: Path) -> None:
    rows = list(load_rows(SourceConfig(source="math"), 0))
    assert [row.index for row in rows] == list(range(14))
    assert [str(row.prompt) for row in rows[:3]] == ["algebra 1", "algebra 2", "counting_and_probability 1"]
    assert [row.order for row in rows[:2]] == [1.0, 2.0]
    one = load_rows(SourceConfig(source="math", subset="geometry", split="train[1:]"), 0)
    assert [row.prompt for row in one] == ["geometry 2"]
    with pytest.raises(UserError, match=r"data\.split 'train\[:1\]' would be cut from each of the 7 subsets"):
        list(load_rows(SourceConfig(source="math", split="train[:1]"), 0))


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"source": "gsm8k"}, ("openai/gsm8k", "main", "train")),
        ({"source": "gsm8k", "split": "test", "subset": "socratic"}, ("openai/gsm8k", "socratic", "test")),
        ({"source": "humaneval"}, ("openai/openai_humaneval", None, "test")),
        ({"source": "mbpp"}, ("google-research-datasets/mbpp", "sanitized", "train")),
        ({"source": "mbpp", "subset": "full", "split": "test"}, ("google-research-datasets/mbpp", "full", "test")),
        ({"source": "openai/openai_humaneval", "split": "test"}, ("openai/openai_humaneval", None, "test")),
    ],
)
def test_a_name_stands_for_a_place_on_the_hub(keys: dict[str, str], part: tuple[str, ...]) -> None:
    assert hub_parts(SourceConfig(**keys)) == [part]


def test_facts_of_a_hub_data_set_name_every_part(hub: Path) -> None:
    found = source_facts(SourceConfig(source="math", name="maths"), 0)
    assert (found["kind"], found["name"], found["id"]) == ("hub", "maths", "EleutherAI/hendrycks_math")
    assert [part["subset"] for part in found["parts"]][:2] == ["algebra", "counting_and_probability"]
    assert {part["rows"] for part in found["parts"]} == {2}
    assert len({part["fingerprint"] for part in found["parts"]}) == 7
    assert json.loads(json.dumps(found)) == found


def test_facts_of_files_change_with_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a", "answer": "1"}')
    found = source_facts(SourceConfig(source=str(path)), 0)
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found["kind"], found["bytes"], found["limit"]) == ("file", 32, None)
    before = source_facts(SourceConfig(source=str(tmp_path)), 0)
    assert (before["kind"], before["files"], before["bytes"]) == ("folder", 1, 32)
    path.rename(tmp_path / "other.jsonl")
    assert source_facts(SourceConfig(source=str(tmp_path)), 0)["sha256"] != before["sha256"]


def test_facts_of_what_is_made_are_all_that_makes_it() -> None:
    found = source_facts(SourceConfig(source="additions", additions={"count": 3}), 7)
    assert (found["kind"], found["seed"], found["options"]["count"]) == ("generator", 7, 3)
    pytest.importorskip("reasoning_gym")
    found = source_facts(SourceConfig(source="reasoning-gym:gcd", limit=9, options={"max_numbers": 3}), 7)
    assert found["version"] == importlib.metadata.version("reasoning-gym")
    assert found["options"] == {"max_numbers": 3, "size": 9}
    assert found["seed"] != source_facts(SourceConfig(source="reasoning-gym:gcd"), 8)["seed"]
