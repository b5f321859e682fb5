"""What is known of a prompt's difficulty, and from which round on a source's prompts may be taken."""

import pyarrow as pa
import pytest
from scipy.stats import beta

from grpo_core.prompts.config import DataConfig
from grpo_core.prompts.difficulty import Difficulty, difficulty_metrics, read_difficulty, state_of, update_difficulty
from grpo_core.prompts.joining import with_joining_rounds
from grpo_core.prompts.plan_config import DifficultyConfig
from grpo_core.schemas import DIFFICULTY, REWARDS


def verdicts(**found: list[str]) -> pa.Table:
    part = pa.schema([REWARDS.field(name) for name in ("prompt_id", "verdict")])
    rows = [{"prompt_id": prompt, "verdict": verdict} for prompt, group in found.items() for verdict in group]
    return pa.Table.from_pylist(rows, schema=part)


def test_a_pass_rate_by_hand() -> None:
    table = update_difficulty({}, {"a": 0}, verdicts(a=["ok", "ok", "wrong", "timeout"]), 3, DifficultyConfig())
    row = read_difficulty(table)["a"]
    # Jeffreys' prior: (2 + 1/2) / (3 + 1); the timeout is no finding.
    assert (row.visits, row.rollouts, row.solved, row.last_round, row.last_epoch) == (1, 3, 2, 3, 0)
    assert row.pass_rate == 0.625
    assert (row.lower, row.upper) == pytest.approx(beta.ppf([0.05, 0.95], 2.5, 1.5))
    assert table.schema.equals(DIFFICULTY)
    # The next visit, all wrong: the first counts half. (1 + 1/2) / (1.5 + 2 + 1).
    again = read_difficulty(
        update_difficulty({"a": row}, {"a": 1}, verdicts(a=["wrong", "unparsable"]), 9, DifficultyConfig())
    )["a"]
    assert again.pass_rate == pytest.approx(1.5 / 4.5)
    assert (again.visits, again.rollouts, again.solved, again.weight) == (2, 5, 2, 3.5)


@pytest.mark.parametrize(
    ("right", "of", "state"),
    # 8 of 8: 8.5 / 9 = 0.944; 4 of 4: 4.5 / 5 = 0.9, which is inside; 0 of 8: 0.056; 0 of 4: 0.1.
    [(8, 8, "solved"), (4, 4, "active"), (0, 8, "failed"), (0, 4, "active"), (1, 8, "active"), (7, 8, "active")],
)
def test_when_a_prompt_is_retired(right: int, of: int, state: str) -> None:
    outcomes = verdicts(a=["ok"] * right + ["wrong"] * (of - right))
    assert read_difficulty(update_difficulty({}, {"a": 0}, outcomes, 1, DifficultyConfig()))["a"].state == state
    off = DifficultyConfig(band=None)
    assert read_difficulty(update_difficulty({}, {"a": 0}, outcomes, 1, off))["a"].state == "active"


def test_a_prompt_whose_checks_all_failed_was_taken_and_nothing_more_is_known() -> None:
    row = read_difficulty(update_difficulty({}, {"a": 4}, verdicts(a=["error"] * 8), 2, DifficultyConfig()))["a"]
    assert row == Difficulty("a", visits=1, last_round=2, last_epoch=4)


def test_prompts_of_other_rounds_stay_as_they_are() -> None:
    past = {"b": Difficulty("b", visits=3, pass_rate=0.25, state="failed")}
    found = read_difficulty(update_difficulty(past, {"a": 0}, verdicts(a=["ok"]), 2, DifficultyConfig()))
    assert list(found) == ["a", "b"]
    assert found["b"] == past["b"]


def test_metrics() -> None:
    before = {"a": Difficulty("a", 1, 8, 8, state="solved"), "b": Difficulty("b", 1, 8, 4)}
    after = update_difficulty(before, {"b": 1}, verdicts(b=["ok"] * 24), 2, DifficultyConfig(memory=0.0))
    metrics = difficulty_metrics(after, before, 10)
    assert (metrics["known"], metrics["unknown"], metrics["solved"], metrics["retired_now"]) == (2, 8, 2, 1)
    assert metrics["brought_back"] == 0


def test_the_ends_belong_to_the_band() -> None:
    assert [state_of(rate, (0.1, 0.9)) for rate in (0.1, 0.9, 0.0999, 0.9001)] == [
        "active",
        "active",
        "failed",
        "solved",
    ]


def test_a_source_that_joins_gets_the_next_round_and_the_others_keep_theirs() -> None:
    before = DataConfig(source="a.jsonl", gold_column="gold")
    mixed = DataConfig.model_validate(
        {"sources": [{"source": "a.jsonl", "gold_column": "gold", "weight": 2}, {"source": "b.jsonl", "weight": 1}]}
    )
    joined = with_joining_rounds(mixed, before, 7)
    assert [source.from_round for source in joined.sources] == [None, 7]
    assert with_joining_rounds(mixed, joined, 9) == joined  # the same config again, later on
    assert with_joining_rounds(mixed, before, 1) == mixed  # nothing is planned yet
    named = mixed.model_copy(update={"sources": [s.model_copy(update={"from_round": 1}) for s in mixed.sources]})
    assert with_joining_rounds(named, before, 7) == named


def test_a_source_whose_keys_changed_is_no_new_one_and_the_first_round_keeps_a_source() -> None:
    def mixed(*sources: dict[str, object]) -> DataConfig:
        return DataConfig.model_validate({"sources": list(sources)})

    def rounds(data: DataConfig) -> list[int | None]:
        return [source.from_round for source in with_joining_rounds(data, before, 7).sources]

    before = mixed({"source": "a.jsonl"}, {"source": "b.jsonl", "from_round": 4})
    assert rounds(mixed({"source": "a.jsonl", "limit": 9}, {"source": "b.jsonl", "limit": 9})) == [None, 4]
    assert rounds(mixed({"source": "b.jsonl"}, {"source": "a.jsonl", "name": "renamed"})) == [4, None]
    assert rounds(mixed({"source": "a.jsonl"}, {"source": "c.jsonl"})) == [None, 7]
    assert rounds(mixed({"source": "c.jsonl"})) == [None]
    assert rounds(mixed({"source": "c.jsonl"}, {"source": "b.jsonl"})) == [None, 4]
    with pytest.raises(ValueError, match="no source has prompts for the first round"):
        mixed({"source": "a.jsonl", "from_round": 2})
