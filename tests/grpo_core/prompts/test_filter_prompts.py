import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.prompts.filters import FilteredPrompts, filter_prompts, prompt_identity
from grpo_core.prompts.filters_config import FiltersConfig
from grpo_core.prompts.gold import extract_gold
from grpo_core.prompts.sources import SourceRow, load_rows
from grpo_core.schemas import PROMPTS, REJECTED

SHARED = Path(__file__).resolve().parents[4] / "shared/data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not there")

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHAT_TEMPLATE


def _byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a byte."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = chat_template
    return fast


TOKENIZER = _byte_tokenizer()


def _filter(
    cells: list[tuple[object, object]], tokenizer: PreTrainedTokenizerFast = TOKENIZER, seed: int = 0, **keys: Any
) -> FilteredPrompts:
    rows = [SourceRow(index, prompt, gold) for index, (prompt, gold) in enumerate(cells)]
    config = DataConfig(**{"eval_size": 1, **keys})
    return filter_prompts([(config.mix[0], rows)], [], config, tokenizer, seed)


def _kept(filtered: FilteredPrompts) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.concat_tables([filtered.train, filtered.eval]).to_pylist()
    return sorted(rows, key=lambda row: row["source_row"])


def _questions(number: int) -> list[tuple[object, object]]:
    return [(f"question {n}", str(n)) for n in range(number)]


def test_every_row_is_kept_or_rejected_with_its_reason() -> None:
    filtered = _filter(
        [
            ("What is 1 + 1?", 2),  # 0 kept
            (None, "1"),
            ("  \n", "1"),
            (math.nan, "1"),
            ("no gold", None),
            ("blank gold", " "),  # 5
            ("empty box", r"so \boxed{}"),
            (["a", "list"], "1"),
            ("a record as gold", {"value": 1}),
            ("  What is 1 + 1? ", "2"),
            ("one prompt", "3"),  # 10
            ("x" * 31, "1"),
            ("no gold", "now there is"),  # 12 kept: the earlier row was no prompt
            (5, 51.0),  # 13 kept
            ("one prompt", "4"),  # 14: nobody knows which of the two is right
        ],
        max_prompt_tokens=54,  # <user></user><assistant> are 24 bytes: 30 are left
    )
    assert [(row["source_row"], row["prompt"], row["gold"]) for row in _kept(filtered)] == [
        (0, "What is 1 + 1?", "2"),
        (12, "no gold", "now there is"),
        (13, "5", "51"),
    ]
    assert [tuple(row.values())[1:] for row in filtered.rejected.to_pylist()] == [
        (1, None, "1", "empty_prompt", "null"),
        (2, "", "1", "empty_prompt", "blank"),
        (3, None, "1", "empty_prompt", "null"),
        (4, "no gold", None, "no_gold", "null"),
        (5, "blank gold", "", "no_gold", "blank"),
        (6, "empty box", r"so \boxed{}", "no_gold", r"no auto gold in 'so \\boxed{}'"),
        (7, None, "1", "not_text", "the prompt is a list, not text"),
        (8, "a record as gold", None, "not_text", "the gold is a dict, not text"),
        (9, "What is 1 + 1?", "2", "duplicate", "same prompt as row 0 of additions"),
        (10, "one prompt", "3", "conflicting_gold", "same prompt as row 14 of additions, whose gold is '4'"),
        (11, "x" * 31, "1", "too_long", "55 tokens, at most 54 allowed"),
        (14, "one prompt", "4", "conflicting_gold", "same prompt as row 10 of additions, whose gold is '3'"),
    ]
    assert filtered.counts == {
        "not_text": 2,
        "empty_prompt": 3,
        "no_gold": 3,
        "duplicate": 1,
        "conflicting_gold": 2,
        "too_long": 1,
    }
    assert filtered.train.schema.equals(PROMPTS)
    assert filtered.eval.schema.equals(PROMPTS)
    assert filtered.rejected.schema.equals(REJECTED)


def test_a_prompt_of_exactly_the_allowed_tokens_stays() -> None:
    assert _filter([("x" * 30, "1"), ("y", "1")], max_prompt_tokens=54).counts == {}


def test_the_chat_template_is_applied_once_around_the_prompt_template() -> None:
    filtered = _filter(
        [("Größe?", "1"), ("b", "2")], prompt_template="{prompt} Use \\boxed{{}}.", system_prompt="Be brief."
    )
    row = _kept(filtered)[0]
    assert row["prompt"] == "Größe? Use \\boxed{}."
    assert TOKENIZER.decode(row["prompt_ids"]) == (
        "<system>Be brief.</system><user>Größe? Use \\boxed{}.</user><assistant>"
    )
    assert len(row["prompt_ids"]) == len(TOKENIZER.decode(row["prompt_ids"]).encode())


@pytest.mark.parametrize(("template", "keys"), [(None, {}), (CHAT_TEMPLATE, {"chat_template": False})])
def test_without_a_chat_template_the_model_gets_bare_text(template: str | None, keys: dict[str, Any]) -> None:
    rows = _kept(
        _filter([("a {b}", "1"), ("c", "2")], _byte_tokenizer(template), prompt_template="Q: {prompt}", **keys)
    )
    assert [TOKENIZER.decode(row["prompt_ids"]) for row in rows] == ["Q: a {b}", "Q: c"]


def test_a_system_prompt_that_nobody_would_see_is_refused() -> None:
    with pytest.raises(UserError, match=r"data\.system_prompt is set, but no chat template is in use"):
        _filter(_questions(3), _byte_tokenizer(None), system_prompt="Be brief.")


def test_a_template_that_refuses_a_system_prompt_is_named() -> None:
    with pytest.raises(UserError, match=r"no system role.*unset data\.system_prompt"):
        _filter(_questions(3), _byte_tokenizer(NO_SYSTEM), system_prompt="Be brief.")


def test_identity_is_the_question_s_own() -> None:
    # sha256("question 0"), worked out with sha256sum.
    assert prompt_identity(" question 0\n") == "6183866a41c96e64"
    plain, dressed = (_filter(_questions(5), prompt_template=t, seed=3) for t in ("{prompt}", "Now: {prompt}"))
    assert plain.train["prompt_id"] == dressed.train["prompt_id"]
    assert plain.eval["prompt_id"] == dressed.eval["prompt_id"]


def test_equal_input_gives_equal_tables_and_the_seed_decides_the_split() -> None:
    first, again, other = (_filter(_questions(40), eval_size=10, seed=seed) for seed in (1, 1, 2))
    assert first.train.equals(again.train)
    assert first.eval.equals(again.eval)
    assert first.eval["prompt_id"] != other.eval["prompt_id"]


def test_more_rows_disturb_the_held_out_set_only_by_their_own_number() -> None:
    before, after = (set(_filter(_questions(n), eval_size=40).eval["prompt_id"].to_pylist()) for n in (200, 205))
    new = {prompt_identity(f"question {n}") for n in range(200, 205)}
    assert after - before <= new
    assert len(before - after) == len(after & new)


@settings(deadline=None)
@given(
    cells=st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(max_size=6), st.sampled_from("abcdefgh"), st.integers(0, 9), st.floats()),
            st.one_of(st.none(), st.sampled_from(["1", "2", "#### 3", r"\boxed{}", ""]), st.integers(0, 2)),
        ),
        max_size=60,
    ),
    eval_size=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_the_tables_part_the_rows_and_share_no_prompt(
    cells: list[tuple[object, object]], eval_size: int, seed: int
) -> None:
    fixed = [(f"always kept {n}", "1") for n in range(4)]
    filtered = _filter([*cells, *fixed], seed=seed, eval_size=eval_size)
    tables = (filtered.train, filtered.eval, filtered.rejected)
    indices = [table["source_row"].to_pylist() for table in tables]
    assert all(rows == sorted(rows) for rows in indices)
    assert sorted(index for rows in indices for index in rows) == list(range(len(cells) + 4))
    ids = [row["prompt_id"] for row in _kept(filtered)]
    assert len(ids) == len(set(ids))
    assert filtered.eval.num_rows == eval_size
    assert sum(filtered.counts.values()) == filtered.rejected.num_rows
    assert all(row["gold"] and row["prompt"] and row["prompt_ids"] for row in _kept(filtered))


def test_too_few_prompts_for_the_held_out_set_say_why() -> None:
    cells = [*_questions(3), ("question 1", "1"), ("x", None)]
    with pytest.raises(UserError, match=r"data\.eval_size is 3, .*only 3 prompts left .*no_gold 1, duplicate 1"):
        _filter(cells, eval_size=3)
    assert _filter(cells, eval_size=2).train.num_rows == 1


@pytest.mark.parametrize("cells", [[], [("a", None), ("b", " ")], [("a" * 100, "1")]])
def test_no_prompt_left_is_a_user_error(cells: list[tuple[object, object]]) -> None:
    with pytest.raises(UserError, match=r"No prompt of data\.source 'additions' is left after filtering"):
        _filter(cells, max_prompt_tokens=50)


def test_progress_counts_up_to_all_prompts() -> None:
    heard: list[tuple[int, int]] = []
    rows = [SourceRow(n, f"question {n}", "1") for n in range(600)]
    filter_prompts(
        [(SourceConfig(), rows)],
        [],
        DataConfig(eval_size=1),
        TOKENIZER,
        0,
        lambda done, total: heard.append((done, total)),
    )
    assert heard == [(0, 600), (256, 600), (512, 600), (600, 600)]


@needs_shared
def test_gsm8k_loses_the_one_problem_that_it_has_twice() -> None:
    config = DataConfig(source=str(SHARED / "gsm8k/train.jsonl"), max_prompt_tokens=1100)
    filtered = filter_prompts([(config.mix[0], load_rows(config, 0))], [], config, TOKENIZER, 0)
    assert (filtered.train.num_rows, filtered.eval.num_rows, filtered.counts) == (7408, 64, {"near_duplicate": 1})
    (twice,) = filtered.rejected.to_pylist()
    assert twice["prompt"].startswith("Amanda received $50 as a gift. She plans to buy two cassette tapes")
    assert twice["detail"].startswith("like row 2483 of ")
    golds = [row["gold"] for row in _kept(filtered)]
    assert golds[:2] == ["72", "10"]
    assert all(float(gold) == float(gold) and "," not in gold for gold in golds)


@needs_shared
def test_math_loses_the_two_empty_golds_and_its_solutions_hold_the_same_answers() -> None:
    answers, solutions = (
        DataConfig(
            source=str(SHARED / "math/train.jsonl"),
            gold_column=column,
            max_prompt_tokens=10**5,
            filters=FiltersConfig(near_duplicates=None, contamination=None),
        )
        for column in ("answer", "solution")
    )
    filtered = filter_prompts([(answers.mix[0], load_rows(answers, 0))], [], answers, TOKENIZER, 0)
    assert filtered.counts == {"no_gold": 2}
    by_row = {row["source_row"]: row["gold"] for row in _kept(filtered)}
    found = {row.index: extract_gold(str(row.gold), "auto") for row in load_rows(solutions, 0)}
    assert {index: gold for index, gold in found.items() if gold} == by_row


@needs_shared
def test_svamp_s_questions_without_their_story_are_found_out() -> None:
    config = DataConfig(source=str(SHARED / "svamp/SVAMP.json"), prompt_column="Question", gold_column="Answer")
    filtered = filter_prompts([(config.mix[0], load_rows(config, 0))], [], config, TOKENIZER, 0)
    kept = [row["prompt"] for row in _kept(filtered)]
    conflicts = [row["prompt"] for row in filtered.rejected.to_pylist() if row["reason"] == "conflicting_gold"]
    assert not set(kept) & set(conflicts)
    assert len(kept) + filtered.rejected.num_rows == 1000
