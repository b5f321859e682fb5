"""Several sources, evaluation sets of their own, and pools that come later."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DATA

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.prompts.filters import REASONS, FilteredPrompts, Known, filter_prompts
from grpo_core.prompts.filters_text import tokens_of
from grpo_core.prompts.gold_check import GoldCheck
from grpo_core.prompts.sources import SourceRow, load_rows
from grpo_core.rewards.config import RewardConfig
from grpo_core.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
CHECK = GoldCheck(RewardConfig())
STORY = "A robe takes {} bolts of blue fiber and half that much white fiber. How many bolts in total does it take?"

Cells = list[tuple[Any, Any]]


def _rows(cells: Cells) -> list[SourceRow]:
    return [SourceRow(index, *cell) for index, cell in enumerate(cells)]


def _filter(
    train: dict[str, Cells], held: dict[str, Cells] | None = None, known: Known | None = None, **keys: Any
) -> FilteredPrompts:
    sources, held_sources = (
        [SourceConfig(source=f"{name}.jsonl", name=name) for name in part] for part in (train, held or {})
    )
    settings_ = {"eval_size": 0 if held else 1, "max_prompt_tokens": 10**5, **keys}
    if not held and not settings_["eval_size"]:
        settings_["eval_sources"] = [SourceConfig(source="unread")]
    config = DataConfig(**{"sources": sources, "eval_sources": held_sources, **settings_})
    return filter_prompts(
        [(source, _rows(train[source.label])) for source in sources],
        [(source, _rows((held or {})[source.label])) for source in held_sources],
        config,
        TOKENIZER,
        0,
        check=CHECK,
        known=known,
    )


def _refused(filtered: FilteredPrompts) -> list[tuple[str, int, str]]:
    return [(row["source"], row["source_row"], row["reason"]) for row in filtered.rejected.to_pylist()]


def test_of_equal_rows_the_first_source_keeps_its_own() -> None:
    one, two = [("What is 1 + 1?", "2"), ("What is 1 + 2?", "3")], [("What is 1 + 1?", "2.0"), ("What is 5 + 2?", "7")]
    assert _refused(_filter({"a": one, "b": two})) == [("b", 0, "duplicate")]
    assert _refused(_filter({"b": two, "a": one})) == [("a", 0, "duplicate")]


def test_golds_that_the_reward_calls_equal_do_not_conflict_and_others_all_go() -> None:
    same = [("Half of 1?", "1/2"), ("Half of 1?", "0.5"), ("Half of 2?", "1"), ("Half of 4?", "2")]
    assert _refused(_filter({"a": same})) == [("a", 1, "duplicate")]
    other = [("Half of 1?", "1/2"), ("Half of 1?", "2"), ("Half of 2?", "1"), ("Half of 1?", "0.5"), ("x?", "2")]
    assert _refused(_filter({"a": other})) == [("a", row, "conflicting_gold") for row in (0, 1, 3)]


def test_an_evaluation_set_wins_and_its_own_rows_are_checked() -> None:
    train = [
        (STORY.format(2), "3"),
        (f"Here is an old one. {STORY.format(2)} Think hard.", "17"),
        (STORY.format(4), "6"),
        (STORY.format(2).upper(), "3"),
        ("What is 3 + 4?", "7"),
    ]
    held = [(STORY.format(2), "3"), ("no gold", None), ("What is 3 + 5?", "8")]
    filtered = _filter({"train": train}, {"test": held})
    assert _refused(filtered) == [
        ("train", 0, "contaminated"),
        ("train", 1, "contaminated"),
        ("train", 3, "near_duplicate"),
        ("test", 1, "no_gold"),
    ]
    assert filtered.eval["source"].to_pylist() == ["test", "test"]
    assert "row 0 of test" in filtered.rejected["detail"][0].as_py()
    assert filtered.golds == {"checked": 7, "unchecked": 0, "failed": 0}


def test_held_out_rows_come_besides_and_win_too() -> None:
    train = [(STORY.format(number), str(number)) for number in range(2, 42)]
    train += [(f"Riddle time! {STORY.format(number)} Explain it well.", str(number * 7)) for number in range(2, 42)]
    filtered = _filter({"train": train}, {"test": [("What is 3 + 5?", "8")]}, eval_size=10)
    assert filtered.eval.num_rows == 11
    held = {row["source_row"] % 40 for row in filtered.eval.to_pylist() if row["source"] == "train"}
    assert not held & {index % 40 for index in filtered.train["source_row"].to_pylist()}
    assert 5 <= len(held) <= 10


def test_every_kept_row_tells_where_it_comes_from_and_what_its_reward_needs() -> None:
    source = SourceConfig(source="x.jsonl", name="mine", reward="math")
    rows = [SourceRow(3, "What is 1 + 1?", "2", "so \\boxed{2}", {"b": 1, "a": ["é"]}, "Level 4"), *_rows([("q", "1")])]
    config = DataConfig(sources=[source], eval_size=1)
    filtered = filter_prompts([(source, rows)], [], config, TOKENIZER, 0, check=CHECK)
    kept = {row["source_row"]: row for row in pa.concat_tables([filtered.train, filtered.eval]).to_pylist()}
    expected = {"source": "mine", "extra": '{"a": ["é"], "b": 1}', "order": 4.0}
    assert expected.items() <= kept[3].items()
    assert kept[3]["solution"] == "so \\boxed{2}"
    assert (kept[0]["extra"], kept[0]["order"], kept[0]["solution"]) == (None, None, None)


def test_kinds_and_languages_are_dropped_by_choice() -> None:
    cells: Cells = [
        ("What is 3 + 4?", "7"),
        ("Prove that 2 is prime.", "proof"),
        ("Which is it? (A) 1 (B) 2 (C) 3", "A"),
        ("Berechne bitte die Summe aller Zahlen von eins bis hundert.", "5050"),
        ("What is 3 + 5?", "8"),
    ]
    assert _refused(_filter({"a": cells})) == []
    strict = _filter({"a": cells}, filters={"proofs": "drop", "multiple_choice": "drop", "language": "en"})
    assert _refused(strict) == [("a", 1, "proof"), ("a", 2, "multiple_choice"), ("a", 3, "language")]


def test_golds_are_not_checked_where_that_is_off() -> None:
    bad = [("What?", r"\frac{1}{2"), ("What is 3 + 4?", "7"), ("What is 3 + 5?", "8")]
    assert _refused(_filter({"a": bad})) == [("a", 0, "gold_unverified")]
    off = _filter({"a": bad}, filters={"gold_check": "off"})
    assert (off.counts, off.golds) == ({}, {"checked": 0, "unchecked": 3, "failed": 0})


def test_a_pool_that_comes_later_doubles_and_leaks_nothing() -> None:
    keys = {"prompt_template": "Question: {prompt} Box it."}
    first = _filter({"a": [(STORY.format(2), "3"), ("What is 3 + 4?", "7")]}, {"t": [(STORY.format(4), "6")]}, **keys)
    known = Known(first.train, first.eval)
    pool = [
        ("What is 3 + 4?", "7"),
        ("What is 3 + 4?", "8"),
        (STORY.format(2).replace("robe", "coat"), "3"),
        (f"Tell me: {STORY.format(4)} Please.", "1"),
        ("What is 9 + 9?", "18"),
    ]
    held = [(f"So: {STORY.format(2)}", "3"), ("What is 8 + 9?", "17")]
    added = _filter({"b": pool}, {"u": held}, known, **keys)
    assert _refused(added) == [
        ("b", 0, "conflicting_gold"),
        ("b", 1, "conflicting_gold"),
        ("b", 2, "near_duplicate"),
        ("b", 3, "contaminated"),
        ("u", 0, "contaminated"),
    ]
    again = _filter({"b": [pool[0], pool[4]]}, None, known, eval_size=1, **keys)
    assert (_refused(again), again.eval.num_rows) == ([("b", 0, "duplicate")], 0)
    assert "row 1 of a" in again.rejected["detail"][0].as_py()


def test_a_source_of_which_nothing_is_left_is_named() -> None:
    good: Cells = [("What is 3 + 4?", "7"), ("What is 3 + 5?", "8")]
    with pytest.raises(UserError, match=r"No prompt of data\.source 'b' is left"):
        _filter({"a": good, "b": [("x", None)]})
    with pytest.raises(UserError, match=r"No prompt of data\.eval_sources 't' is left"):
        _filter({"a": good}, {"t": [("x", None)]})


NAMES = st.sampled_from(["Josie", "Amanda", "JOSIE"])
CELL = st.one_of(
    st.tuples(
        st.builds("What is {} + {}?".format, st.integers(0, 3), st.integers(0, 3)), st.sampled_from(["1", "1.0"])
    ),
    st.builds(
        lambda name, lead, cost, tail: (
            f"{lead}{name} got $50 as a gift and buys two tapes of ${cost} each. How much is left?{tail}",
            str(50 - 2 * cost),
        ),
        NAMES,
        st.sampled_from(["", "Problem 4. ", "Solve this well-known riddle by yourself: "]),
        st.integers(5, 8),
        st.sampled_from(["", " Think step by step.", "\n"]),
    ),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(CELL, max_size=25), st.lists(CELL, max_size=6), st.integers(0, 3))
def test_what_is_kept_is_kept_again_and_shares_nothing_with_the_evaluation_set(
    train: Cells, held: Cells, size: int
) -> None:
    fixed: Cells = [(f"How many legs have {number} spiders?", str(8 * number)) for number in range(20, 25)]
    filtered = _filter({"a": [*train, *fixed]}, {"t": [*held, ("What is 7 + 7?", "14")]}, eval_size=size)
    kept, out = filtered.train.to_pylist(), filtered.eval.to_pylist()
    assert not {row["prompt_id"] for row in kept} & {row["prompt_id"] for row in out}
    assert not {tokens_of(row["prompt"]).words for row in kept} & {tokens_of(row["prompt"]).words for row in out}
    assert sum(filtered.counts.values()) == filtered.rejected.num_rows == len(train) + len(held) + 6 - len(kept + out)
    assert set(filtered.counts) <= set(REASONS)
    again = _filter(
        {"a": [(row["prompt"], row["gold"]) for row in [*kept, *(row for row in out if row["source"] == "a")]]},
        {"t": [(row["prompt"], row["gold"]) for row in out if row["source"] == "t"]},
        eval_size=size,
    )
    assert again.counts == {}
    assert set(again.train["prompt_id"].to_pylist()) == {row["prompt_id"] for row in kept}


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")
@pytest.mark.parametrize(
    ("train", "test", "counts"),
    [
        ("gsm8k/train", "gsm8k/test", {"near_duplicate": 1}),
        ("math/train", "math/math500", {"no_gold": 2, "near_duplicate": 8, "contaminated": 5}),
    ],
)
def test_real_sets_lose_what_was_looked_at(train: str, test: str, counts: dict[str, int]) -> None:
    source, held = (SourceConfig(source=str(DATA / f"{name}.jsonl"), name=name) for name in (train, test))
    config = DataConfig(sources=[source], eval_sources=[held], eval_size=0, max_prompt_tokens=10**5)
    filtered = filter_prompts(
        [(source, load_rows(source, 0))], [(held, load_rows(held, 0))], config, TOKENIZER, 0, check=CHECK
    )
    assert {reason: number for reason, number in filtered.counts.items() if reason != "ambiguous_gold"} == counts
    assert not set(filtered.train["prompt_id"].to_pylist()) & set(filtered.eval["prompt_id"].to_pylist())
