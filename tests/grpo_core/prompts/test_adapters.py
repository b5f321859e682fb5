"""Adapters: the shapes of known data sets by hand, and the real files, whose references must pass their reward."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import DATA

from grpo_core.errors import UserError
from grpo_core.prompts.adapters import as_number
from grpo_core.prompts.config import SourceConfig
from grpo_core.prompts.gold import extract_gold
from grpo_core.prompts.sources import SourceRow, load_rows
from grpo_core.rewards.code import CodeConfig, code_reward
from grpo_core.rewards.verdict import Sample

HUMANEVAL = {
    "task_id": "HumanEval/x",
    "prompt": 'def add(a, b):\n    """ The sum. """\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
MBPP = {
    "text": "Write a function to halve a number. ",
    "code": "def half(x):\n    return math.floor(x) / 2",
    "test_list": ["assert half(4) == 2", "assert half(3) == 1.5"],
    "test_imports": ["import math"],
    "test_setup_code": "two = 2",
    "challenge_test_list": [],
}


def read(path: Path, rows: list[dict[str, Any]] | None = None, **keys: Any) -> list[SourceRow]:
    if rows is not None:
        path = path / "rows.json"
        path.write_text(json.dumps(rows))
    return list(load_rows(SourceConfig(source=str(path), **keys), 0))


def real(name: str, **keys: Any) -> list[SourceRow]:
    if not (DATA / name).exists():
        pytest.skip("needs ../shared/data")
    return read(DATA / name, **keys)


def test_gsm8k_parts_the_worked_solution_from_the_gold(tmp_path: Path) -> None:
    (row,) = read(tmp_path, [{"question": "q", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}], adapter="gsm8k")
    assert (row.prompt, row.solution) == ("q", "1 + 1 = <<1+1=2>>2")
    assert extract_gold(str(row.gold), SourceConfig(source="gsm8k").gold_format) == "2"


def test_math_takes_the_answer_or_what_its_solution_boxes_and_the_level(tmp_path: Path) -> None:
    rows = [
        {"problem": "p", "level": "Level 5", "solution": r"so \boxed{7}", "answer": "7"},
        {"problem": "p", "level": "Level ?", "solution": r"so \boxed{8}", "answer": "8"},
        {"problem": "p", "level": 3, "solution": "so nothing", "answer": None},
    ]
    found = read(tmp_path, rows, adapter="math")
    assert [row.gold for row in found] == ["7", "8", None]
    assert [row.order for row in found] == [5.0, None, 3.0]
    assert found[0].solution == r"so \boxed{7}"
    without = [{key: value for key, value in row.items() if key != "answer"} for row in rows]
    assert [row.gold for row in read(tmp_path, without, adapter="math")] == ["7", "8", None]


def test_humaneval_asks_for_its_code_and_keeps_the_tests_apart(tmp_path: Path) -> None:
    (row,) = read(tmp_path, [HUMANEVAL], adapter="humaneval")
    program = 'def add(a, b):\n    """ The sum. """\n    return a + b\n'
    assert row.gold == program
    assert row.solution == f"```python\n{program}```"
    assert row.extra == {"tests": HUMANEVAL["test"], "entry_point": "add", "prompt": HUMANEVAL["prompt"]}
    assert "function add" in str(row.prompt)
    assert HUMANEVAL["prompt"] in str(row.prompt)
    assert "candidate" not in str(row.prompt)


def test_mbpp_shows_one_test_and_keeps_all_with_their_imports(tmp_path: Path) -> None:
    (row,) = read(tmp_path, [MBPP], adapter="mbpp")
    assert row.extra == {"tests": ["import math", "two = 2", "assert half(4) == 2", "assert half(3) == 1.5"]}
    assert str(row.prompt).startswith("Write a function to halve a number. Give")
    assert "assert half(4) == 2" in str(row.prompt)
    assert "1.5" not in str(row.prompt)
    assert row.gold == MBPP["code"]


@pytest.mark.parametrize(
    ("adapter", "row"),
    [
        ("mbpp", {**MBPP, "test_list": []}),
        ("mbpp", {**MBPP, "text": None}),
        ("humaneval", {**HUMANEVAL, "test": None}),
        ("humaneval", {**HUMANEVAL, "prompt": None}),
    ],
)
def test_code_without_tests_or_text_has_no_gold_so_that_it_is_rejected(
    tmp_path: Path, adapter: str, row: dict[str, Any]
) -> None:
    (found,) = read(tmp_path, [row], adapter=adapter)
    assert found.gold is None


def test_keys_win_over_an_adapter(tmp_path: Path) -> None:
    rows = [{"mine": "m", "question": "q", "answer": "#### 2", "final": "3", "why": "because", "rank": "no. 4"}]
    keys = {"prompt_column": "mine", "gold_column": "final", "solution_column": "why", "order_column": "rank"}
    (row,) = read(tmp_path, rows, adapter="gsm8k", extra_columns=["question"], **keys)
    assert (row.prompt, row.gold, row.solution, row.order) == ("m", "3", "because", 4.0)
    assert row.extra == {"question": "q"}
    (row,) = read(
        tmp_path, [{**HUMANEVAL, "whole": "def add(a, b): return b + a"}], adapter="humaneval", gold_column="whole"
    )
    assert row.gold == "def add(a, b): return b + a"


@pytest.mark.parametrize(
    ("adapter", "columns", "missing"),
    [
        ("gsm8k", ["question"], "answer"),
        ("math", ["answer", "solution"], "problem"),
        ("humaneval", ["prompt", "test", "canonical_solution"], "entry_point"),
        ("mbpp", ["prompt", "code"], "test_list"),
    ],
)
def test_a_missing_column_is_named_once(tmp_path: Path, adapter: str, columns: list[str], missing: str) -> None:
    with pytest.raises(UserError, match=f"data.adapter: .* no column '{missing}', which the adapter {adapter} reads"):
        read(tmp_path, [dict.fromkeys(columns, "x")], adapter=adapter)


# --- plain


def test_plain_takes_tests_by_themselves(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "p", "tests": ["assert f(1) == 2", "assert f(2) == 3"], "entry_point": "f", "note": "n"},
        {"prompt": "p", "tests": None, "entry_point": "f", "note": "n"},
    ]
    first, second = read(tmp_path, rows)
    assert first.extra == {"tests": rows[0]["tests"], "entry_point": "f"}
    assert first.gold == "assert f(1) == 2\nassert f(2) == 3"
    assert (second.extra, second.gold) == ({}, None)
    (programs,) = read(tmp_path, [{"prompt": "p", "answer": "a", "tests": [{"input": "1", "output": "2"}], "n": 1}])
    assert programs.extra == {"tests": [{"input": "1", "output": "2"}]}
    assert programs.gold == "a"


def test_plain_takes_what_the_keys_name(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "answer": "a", "why": "w", "level": 2, "notes": {"b": [1, None, 1.5]}}]
    keys = {"solution_column": "why", "order_column": "level", "extra_columns": ["notes"]}
    (row,) = read(tmp_path, rows, **keys)
    assert row == SourceRow(0, "p", "a", "w", {"notes": {"b": [1, None, 1.5]}}, 2.0)
    for key, value in keys.items():
        with pytest.raises(UserError, match=f"data.{key}: .* no column"):
            read(tmp_path, rows, **{key: ["gone"] if isinstance(value, list) else "gone"})


def test_a_place_of_a_mix_is_named_and_a_path_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data.source").mkdir()
    path = tmp_path / "data.source/rows.json"
    path.write_text('[{"a": 1}]')
    with pytest.raises(UserError, match=r"^data\.sources\.3\.prompt_column: .*/data\.source/rows\.json' has none"):
        next(load_rows(SourceConfig(source=str(path)), 0, "data.sources.3"))


@pytest.mark.parametrize(
    ("cell", "number"),
    [("Level 5", 5.0), (3, 3.0), ("-1.5e", -1.5), ("none", None), (None, None), (float("nan"), None), ([1], None)],
)
def test_what_a_curriculum_sorts_by_is_a_number(cell: object, number: float | None) -> None:
    assert as_number(cell) == number


# --- by name


@pytest.mark.parametrize(
    ("source", "adapter", "gold_format"),
    [
        ("gsm8k", "gsm8k", "auto"),
        ("openai/gsm8k", "gsm8k", "auto"),
        ("math", "math", "auto"),
        ("humaneval", "humaneval", "plain"),
        ("google-research-datasets/mbpp", "mbpp", "plain"),
        ("reasoning-gym:maze", "plain", "plain"),
        ("rows.jsonl", "plain", "auto"),
    ],
)
def test_a_known_name_or_id_has_its_adapter(source: str, adapter: str, gold_format: str) -> None:
    config = SourceConfig(source=source)
    assert (config.reads_as, config.gold_format) == (adapter, gold_format)
    assert SourceConfig(source=source, adapter="plain", gold_format="boxed").gold_format == "boxed"


# --- the real files


def test_every_row_of_gsm8k_and_math_has_a_gold_and_a_solution() -> None:
    rows = real("gsm8k/train.jsonl", adapter="gsm8k")
    assert len(rows) == 7473
    assert all(extract_gold(str(row.gold), "auto") and row.solution for row in rows)
    rows = real("math/train.jsonl", adapter="math")
    assert len(rows) == 7500
    assert {row.order for row in rows} == {1.0, 2.0, 3.0, 4.0, 5.0, None}
    assert all(row.solution for row in rows)
    # These two box nothing: they are the filter's to reject.
    assert sum(not row.gold for row in rows) == 2
    assert {row.order for row in real("math/math500.jsonl", adapter="math")} == {1.0, 2.0, 3.0, 4.0, 5.0}


def refused(rows: list[SourceRow]) -> dict[int, str]:
    """The rows whose reference does not pass the tests that they bring."""
    samples = [
        Sample(str(row.index), str(row.solution), str(row.gold), str(row.prompt), extra=row.extra) for row in rows
    ]
    scores = code_reward(CodeConfig(timeout_seconds=60.0, workers=2))(samples)
    return {row.index: score.detail for row, score in zip(rows, scores, strict=True) if score.reward != 1.0}


@pytest.mark.parametrize(("name", "rows"), [("HumanEval.jsonl", 164), ("sanitized-mbpp.json", 427)])
def test_real_code_is_asked_for_and_checked(name: str, rows: int) -> None:
    found = real(f"code/{name}", adapter="humaneval" if rows == 164 else "mbpp")
    assert len(found) == rows
    assert all(row.gold and row.extra["tests"] for row in found)
    assert refused(found[::150]) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "adapter"), [("HumanEval.jsonl", "humaneval"), ("sanitized-mbpp.json", "mbpp")])
def test_references_of_real_code_pass(name: str, adapter: str) -> None:
    rows = real(f"code/{name}", adapter=adapter)
    assert refused(rows[1 :: len(rows) // 20]) == {}


def test_the_body_alone_completes_humaneval() -> None:
    (row,) = real("code/HumanEval.jsonl", adapter="humaneval", limit=1)
    body = str(row.gold).removeprefix(row.extra["prompt"])
    (score,) = code_reward(CodeConfig(timeout_seconds=60.0))([Sample("0", body, "", extra=row.extra)])
    assert score.reward == 1.0
