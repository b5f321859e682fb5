"""Scoring a JSONL file."""

import json
from pathlib import Path

import pytest

from grpo_core.errors import UserError
from grpo_core.rewards.score import RewardConfig
from grpo_core.rewards.score_file import score_file


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_rows_come_back_in_order_with_their_ids(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"id": "first", "response": r"\boxed{4}", "gold": "4"},
        "",
        {"response": "so 2.5", "gold": 2.5},
        {"id": 9, "response": "3", "gold": 4, "note": "kept"},
    )
    scored = list(score_file(path, RewardConfig()))
    assert [(name, score.reward) for name, score in scored] == [("first", 1.1), ("3", 1.0), ("9", 0.0)]


def test_more_rows_than_a_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"response": str(n), "gold": str(n % 2)} for n in range(600)))
    assert [score.reward for _, score in score_file(path, RewardConfig())] == [1.0, 1.0] + [0.0] * 598


def test_extra_columns_reach_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extra_reward_for_tests.py").write_text(
        "def f(samples):\n    return [s.extra['weight'] for s in samples]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path / "a.jsonl", {"response": "", "gold": "", "weight": 0.75})
    ((_, score),) = score_file(path, RewardConfig(name="extra_reward_for_tests:f"))
    assert score.reward == 0.75


def test_a_row_with_tests_needs_no_gold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "count_tests_for_tests.py").write_text(
        "def f(samples):\n    return [float(len(s.extra['tests'])) if s.gold == '' else None for s in samples]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path / "a.jsonl", {"response": "x", "tests": ["assert f()", "assert g()"], "entry_point": "f"})
    ((_, score),) = score_file(path, RewardConfig(name="count_tests_for_tests:f"))
    assert score.reward == 2.0


GOOD = {"response": "1", "gold": "1"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "is a JSON list"),
        ({"gold": "1"}, "has no key 'response'"),
        ({"response": "1"}, "has no key 'gold'"),
        ({"response": 1, "gold": "1"}, "'response' is of the wrong type"),
        ({"response": "1", "gold": None}, "'gold' is of the wrong type"),
        ({"response": "1", "gold": True}, "'gold' is of the wrong type"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, row: object, words: str) -> None:
    path = write(tmp_path / "bad.jsonl", GOOD, row)
    with pytest.raises(UserError, match=rf"bad\.jsonl:2.*{words}"):
        list(score_file(path, RewardConfig()))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"response": "\xff", "gold": "1"}\n')
    with pytest.raises(UserError, match=r"bad\.jsonl:1 is not valid JSON"):
        list(score_file(path, RewardConfig()))


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl cannot be read"):
        list(score_file(tmp_path / "none.jsonl", RewardConfig()))
