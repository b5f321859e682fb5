import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_core.errors import UserError
from grpo_core.prompts.config import AdditionsConfig, DataConfig
from grpo_core.prompts.sources import load_rows

SHARED = Path(__file__).resolve().parents[4] / "shared/data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not there")


def _read(source: object, seed: int = 0, **keys: Any) -> list[tuple[object, object]]:
    rows = list(load_rows(DataConfig(source=str(source), **keys), seed))
    assert [row.index for row in rows] == list(range(len(rows)))
    return [(row.prompt, row.gold) for row in rows]


def _write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# --- additions


def test_additions_are_the_sums_of_the_range_each_once() -> None:
    rows = _read("additions", additions={"low": -1, "high": 1, "count": 9})
    assert sorted(rows) == sorted(
        [
            ("What is -1 + (-1)?", "-2"),
            ("What is -1 + 0?", "-1"),
            ("What is -1 + 1?", "0"),
            ("What is 0 + (-1)?", "-1"),
            ("What is 0 + 0?", "0"),
            ("What is 0 + 1?", "1"),
            ("What is 1 + (-1)?", "0"),
            ("What is 1 + 0?", "1"),
            ("What is 1 + 1?", "2"),
        ]
    )


@given(low=st.integers(-5, 5), width=st.integers(1, 8), seed=st.integers(0, 2**32), data=st.data())
def test_additions_are_distinct_and_a_smaller_count_is_a_prefix(
    low: int, width: int, seed: int, data: st.DataObject
) -> None:
    sizes = {"low": low, "high": low + width - 1}
    everything = _read("additions", seed, additions={**sizes, "count": width**2})
    assert len(set(everything)) == width**2
    count = data.draw(st.integers(1, width**2))
    assert _read("additions", seed, additions={**sizes, "count": count}) == everything[:count]


def test_additions_depend_on_the_seed_and_cost_what_is_taken() -> None:
    wide = {"low": 0, "high": 10**9, "count": 50}
    assert _read("additions", 1, additions=wide) != _read("additions", 2, additions=wide)
    assert len(_read("additions", limit=7)) == 7


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"low": 0, "high": 2, "count": 10}, "gives only 9 different sums; lower count or widen the range"),
        ({"low": 3, "high": 2}, "must not be below low"),
    ],
)
def test_an_impossible_range_is_refused(keys: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AdditionsConfig(**keys)


# --- config


@pytest.mark.parametrize(
    "template", ["{prompt}", "Q: {prompt}\nPut it in \\boxed{{}}.", "{prompt} {prompt}", "{prompt:s}"]
)
def test_a_template_with_the_prompt_in_it_is_taken(template: str) -> None:
    assert DataConfig(prompt_template=template).prompt_template == template


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("no place", "must contain"),
        ("{{prompt}}", "must contain"),
        ("{prompt} \\boxed{}", "any other brace twice"),
        ("{prompt} {other}", "any other brace twice"),
        ("{prompt.x}", "any other brace twice"),
        ("{prompt", "any other brace twice"),
    ],
)
def test_a_template_that_would_fail_later_is_refused_now(template: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataConfig(prompt_template=template)


# --- local files


def test_json_values_arrive_as_written(tmp_path: Path) -> None:
    golds = ["2024-01-01", 12345678901234567890123, 3, 1.5, None, True, ["a"], "3/4", "a\u2028b"]
    lines = [json.dumps({"question": f"q{n}", "answer": gold}, ensure_ascii=False) for n, gold in enumerate(golds)]
    lines.insert(2, "")  # a blank line is no row
    path = _write(tmp_path / "rows.jsonl", "\ufeff" + "\r\n".join(lines))
    assert _read(path) == [(f"q{n}", gold) for n, gold in enumerate(golds)]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "we[1]*rd.json"])
def test_one_array_of_objects_is_read_under_either_name(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / name, '\n [{"question": "a",\n "answer": "1"},\n {"question": "b"}]')
    assert _read(path) == [("a", "1"), ("b", None)]


def test_csv_cells_stay_text(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.csv", 'question,answer\n"a, b",007\nc,1.50\n"d\nd",NA\ne,\n')
    assert _read(path) == [("a, b", "007"), ("c", "1.50"), ("d\nd", "NA"), ("e", "")]


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3], "problem": ["a", None, "c"], "gold": pa.array([1, None, 3], pa.int64())})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert _read(tmp_path / "rows.parquet") == [("a", 1), (None, None), ("c", 3)]


def test_a_parquet_file_may_have_empty_row_groups(tmp_path: Path) -> None:
    row = pa.table({"question": ["a"], "answer": ["1"]})
    for name, tables in {"none.parquet": [row[:0]], "late.parquet": [row[:0], row]}.items():
        with pq.ParquetWriter(tmp_path / name, row.schema) as writer:
            for table in tables:
                writer.write_table(table)
    with pytest.raises(UserError, match="has no rows; give one that has"):
        _read(tmp_path / "none.parquet")
    assert len(_read(tmp_path / "late.parquet")) == 1


def test_a_local_file_leaves_no_copy_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    _read(_write(tmp_path / "rows.jsonl", '{"question": "a", "answer": "1"}'))
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == [
        tmp_path / "rows.jsonl"
    ]


def test_auto_takes_the_first_usual_column_and_names_win(tmp_path: Path) -> None:
    row = {"solution": "s", "answer": "a", "gold": "g", "problem": "p", "question": "q", "mine": "m"}
    path = _write(tmp_path / "rows.jsonl", json.dumps(row))
    assert _read(path) == [("q", "a")]
    assert _read(path, prompt_column="mine", gold_column="solution") == [("m", "s")]


def test_a_column_absent_from_the_first_rows_counts(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", '{"question": "a"}\n{"question": "b", "answer": "2"}')
    assert _read(path) == [("a", None), ("b", "2")]


def test_limit_stops_before_a_bad_line(tmp_path: Path) -> None:
    # Past the rows that are looked at for their columns, so that only the limit keeps it from being read.
    good = '{"question": "a", "answer": "1"}\n' * 150
    path = _write(tmp_path / "rows.jsonl", good + "{bad")
    assert len(_read(path, limit=150)) == 150
    with pytest.raises(UserError, match="line 151"):
        _read(path)


ROW = '{"question": "a", "answer": "1"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.jsonl", ROW + '{"question":', r"bad\.jsonl' is not JSON at line 2 .*; write one object a line"),
        ("late.jsonl", ROW + "\n" + ROW + "nope", "is not JSON at line 4"),
        ("number.jsonl", ROW + "3", "has no JSON object at line 2 .int.; write rows as objects"),
        ("deep.jsonl", '{"question": ' + "[" * 100_000, "is not JSON at line 1"),
        ("pretty.json", '{\n"question": "a"}', "is not JSON at line 1 .*one array of objects"),
        ("array.json", '[{"question": "a"},\n{"question":}]', "is not JSON at line 2"),
        ("ints.json", "[1, 2]", "has no JSON object at element 1"),
        ("latin.jsonl", b'{"question": "caf\xe9", "answer": "1"}', "is not UTF-8 .*; save it as UTF-8"),
        ("empty.jsonl", "\n", "has no rows; give one that has"),
        ("header.csv", "question,answer\n", "has no rows; give one that has"),
        ("empty.csv", "", "can't be read as csv"),
        ("ragged.csv", "question,answer\na,1\nb,2,3,4\n", "can't be read as csv .*line 3"),
        ("bad.parquet", "not parquet", "can't be read as parquet"),
        ("notes.txt", "hello", r"no file that can be read; give a file that ends with \.jsonl"),
    ],
)
def test_a_bad_file_is_one_sentence_with_its_name_and_the_mend(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = _write(tmp_path / name, content)
    with pytest.raises(UserError, match=message) as caught:
        _read(path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "keys", "message"),
    [
        ("{dir}/none.jsonl", {}, "none.jsonl' is not there; check the path"),
        ("{dir}/none", {}, "no file that can be read"),
        ("{dir}/rows.jsonl", {"split": "test"}, "data.split is 'test', but .* has no splits; leave it out"),
        ("additions", {"subset": "main"}, "data.subset is 'main', but .*; leave it out"),
        (
            "{dir}/rows.jsonl",
            {"prompt_column": "mine"},
            "data.prompt_column: .* no column 'mine'; set it to one of ques",
        ),
        ("{dir}/rows.jsonl", {"gold_column": "mine"}, "data.gold_column: .* set it to one of question, answer"),
        (
            "{dir}/other.jsonl",
            {},
            "data.prompt_column: .* none of the usual columns .*; set it to one of Question, tests",
        ),
    ],
)
def test_a_wrong_key_is_named_with_what_there_is(
    tmp_path: Path, source: str, keys: dict[str, str], message: str
) -> None:
    _write(tmp_path / "rows.jsonl", ROW)
    _write(tmp_path / "other.jsonl", '{"Question": "a", "tests": "1"}')
    with pytest.raises(UserError, match=message):
        _read(source.format(dir=tmp_path), **keys)


# --- hub ids, and folders laid out like a hub data set


@pytest.fixture
def hub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("train", "test"):
        _write(folder / f"{name}.jsonl", "".join(f'{{"question": "{name} {n}", "answer": "{n}"}}\n' for n in range(3)))
    splits = "".join(f"  - split: {name}\n    path: {name}.jsonl\n" for name in ("train", "test"))
    configs = "".join(f"- config_name: {name}\n  data_files:\n{splits}" for name in ("main", "socratic"))
    _write(folder / "README.md", f"---\nconfigs:\n{configs}---\n")
    return folder


def test_subset_split_and_slice_are_taken(hub_folder: Path) -> None:
    assert _read(hub_folder, subset="main") == [("train 0", "0"), ("train 1", "1"), ("train 2", "2")]
    assert _read(hub_folder, subset="socratic", split="test[1:2]") == [("test 1", "1")]
    assert _read(hub_folder, subset="main", limit=1) == [("train 0", "0")]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, r"data\.subset must name one of the subsets of .*\['main', 'socratic'\]"),
        ({"subset": "mian"}, r"data\.subset 'mian' is not one of .*\['main', 'socratic'\]"),
        ({"subset": "main", "split": "dev"}, r"data\.split 'dev' can't be taken .*\['train', 'test'\]"),
        ({"subset": "main", "split": "train[:x]"}, r"data\.split 'train\[:x\]' can't be taken"),
    ],
)
def test_a_wrong_subset_or_split_is_named_with_those_there_are(
    hub_folder: Path, keys: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        _read(hub_folder, **keys)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path.name}' can't be loaded .*data files"):
        _read(tmp_path)


class _NoSuchDataset(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the test's output clean."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HTTPServer]:
    """A hub on loopback that has no data set, taken for the real one."""
    import datasets
    from huggingface_hub import constants

    server = HTTPServer(("127.0.0.1", 0), _NoSuchDataset)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    yield server
    server.shutdown()
    server.server_close()


def test_a_data_set_that_the_hub_does_not_have_is_named(hub: HTTPServer) -> None:
    with pytest.raises(
        UserError, match="'nobody/nothing' is not on the Hugging Face hub or not open to you; check the"
    ):
        _read("nobody/nothing")


def test_a_hub_out_of_reach_is_asked_once_and_said(hub: HTTPServer, caplog: pytest.LogCaptureFixture) -> None:
    import datasets

    hub.shutdown()
    hub.server_close()
    with pytest.raises(UserError, match="hub can't be reached and the local cache does not hold it; connect"):
        _read("nobody/nothing")
    assert not [record for record in caplog.records if "Retrying" in record.getMessage()]
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_hub_switched_off_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from huggingface_hub import constants

    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="hub can't be reached"):
        _read("nobody/nothing")


@pytest.mark.parametrize("name", ["a..b", "-x/y"])
def test_what_can_be_no_id_is_a_user_error(name: str) -> None:
    with pytest.raises(UserError, match=r"data\.source"):
        _read(name)


# --- reasoning-gym


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is not None, reason="reasoning-gym is installed")
def test_an_absent_reasoning_gym_names_the_install() -> None:
    with pytest.raises(UserError, match="pip install reasoning-gym"):
        _read("reasoning-gym:leg_counting")


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
def test_reasoning_gym_makes_the_rows_of_a_seed() -> None:
    rows = _read("reasoning-gym:leg_counting", 1, limit=3)
    assert rows == _read("reasoning-gym:leg_counting", 1, limit=5)[:3]
    assert rows != _read("reasoning-gym:leg_counting", 2, limit=3)
    assert all("legs" in str(prompt) and str(gold).isdigit() for prompt, gold in rows)
    with pytest.raises(UserError, match="did you mean leg_counting"):
        _read("reasoning-gym:leg_count")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
@pytest.mark.parametrize("name", ["ransom_note", "list_functions"])
def test_reasoning_gym_makes_the_same_rows_in_every_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The one chooses from a Python set, the other asks the module random.
    made = []
    for hashes in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hashes)
        made.append(_read(f"reasoning-gym:{name}", limit=2))
    assert made[0] == made[1]


# --- real data


@needs_shared
@pytest.mark.parametrize(
    ("name", "keys", "rows"),
    [
        ("gsm8k/train.jsonl", {}, 7473),
        ("math/math500.jsonl", {}, 500),
        ("code/sanitized-mbpp.json", {"gold_column": "code"}, 427),
        ("svamp/SVAMP.json", {"prompt_column": "Question", "gold_column": "Answer"}, 1000),
    ],
)
def test_real_files_are_read_whole(name: str, keys: dict[str, str], rows: int) -> None:
    assert len(_read(SHARED / name, **keys)) == rows
