"""The paired bootstrap and the decision: figures worked out by hand, and what must hold for any two policies."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import RunConfig
from grpo_core.promotion import Comparison, PromotionConfig, compare, decide
from grpo_core.promotion import bootstrap as bootstrap_module
from grpo_core.promotion.bootstrap import paired_scores, resampled_means
from grpo_core.schemas import EVALUATION

FAST = PromotionConfig(resamples=200)
VERDICTS = ("ok", "wrong", "unparsable", "timeout", "error", "missing")


def evaluation(answers: Mapping[str, Sequence[str]], mode: str = "greedy", shuffle: int | None = None) -> pa.Table:
    """Rows of ``answers[prompt_id]``, the verdicts by sample index."""
    rows = [
        {"prompt_id": prompt, "mode": mode, "sample_index": index, "completion_ids": [1], "text": "t"}
        | {"finish_reason": "stop", "verdict": verdict, "extracted": None, "gold": "1", "reward": None}
        for prompt, verdicts in answers.items()
        for index, verdict in enumerate(verdicts)
    ]
    if shuffle is not None:
        random.Random(shuffle).shuffle(rows)
    return pa.Table.from_pylist(rows, schema=EVALUATION)


def greedy(verdicts: Sequence[str], shuffle: int | None = None) -> pa.Table:
    return evaluation({f"p{n:03d}": [verdict] for n, verdict in enumerate(verdicts)}, shuffle=shuffle)


def test_a_failed_check_leaves_the_pair_out_on_either_side():
    candidate = greedy(["ok", "ok", "timeout", "wrong", "unparsable"])
    champion = greedy(["wrong", "ok", "ok", "missing", "ok"])
    scores, left_out = paired_scores(candidate, champion, "accuracy")
    assert scores.tolist() == [[1, 0], [1, 1], [0, 1]]
    assert left_out == 2


def test_samples_are_paired_by_their_index():
    # Of "a" the pairs 0 and 2 count: the candidate has 1 of 2 right, the champion 0 of 2. Of "b" there is no pair.
    candidate = evaluation({"a": ["ok", "error", "wrong"], "b": ["ok"]}, mode="sample")
    champion = evaluation({"a": ["wrong", "ok", "unparsable"], "b": ["timeout"]}, mode="sample")
    scores, left_out = paired_scores(candidate, champion, "avg_at_k")
    assert scores.tolist() == [[0.5, 0.0]]
    assert left_out == 1
    assert paired_scores(candidate, champion, "accuracy")[0].shape == (0, 2)


def test_prompts_that_only_one_has_answered_are_left_out_and_counted():
    candidate = evaluation({"a": ["ok"], "b": ["ok"]})
    found = compare(candidate, evaluation({"b": ["wrong"], "c": ["ok"]}), FAST, seed=1)
    assert found is not None
    assert (found.prompts, found.left_out, found.candidate_score, found.champion_score) == (1, 2, 1.0, 0.0)
    assert compare(candidate, evaluation({"c": ["ok"]}), FAST, seed=1) is None


def test_three_gains_among_six_prompts():
    """A resample is a gain unless it misses all three: 1 - (1/2)^6 = 0.984375. Two of six: 1 - (2/3)^6 = 0.912."""
    config = PromotionConfig(resamples=100_000)
    for gains, exact in ((3, 1 - 0.5**6), (2, 1 - (2 / 3) ** 6)):
        found = compare(greedy(["ok"] * gains + ["wrong"] * (6 - gains)), greedy(["wrong"] * 6), config, seed=5)
        assert found is not None
        assert found.difference == pytest.approx(gains / 6)
        assert found.better == pytest.approx(exact, abs=0.004)
        assert found.worse == 0
        decision = decide(config, found, 0)
        assert decision.outcome == ("promoted" if gains == 3 else "refused")
        assert f"{found.better:.1%} of the resamples" in decision.reason


def test_a_least_gain_must_be_exceeded():
    # Every prompt gains: each resample's difference is exactly 1.
    found = compare(greedy(["ok"] * 4), greedy(["wrong"] * 4), PromotionConfig(min_gain=0.99), seed=1)
    assert found is not None
    assert (found.low, found.high, found.better) == (1.0, 1.0, 1.0)
    # Two of four gain: the mean is 0.5, and half of it or less comes up often.
    config = PromotionConfig(min_gain=0.5)
    found = compare(greedy(["ok", "ok", "wrong", "wrong"]), greedy(["wrong"] * 4), config, seed=1)
    assert found is not None
    assert found.better == pytest.approx(5 / 16, abs=0.02)  # three or four of four draws
    assert decide(config, found, 0).outcome == "refused"
    assert "by more than 0.5" in decide(config, found, 0).reason


def test_means_have_the_bootstrap_s_own_spread_whatever_the_block(monkeypatch):
    values = np.array([0.0, 1.0, 0.0, 0.5, 1.0, 0.25])
    means = resampled_means(values, 20_000, seed=3)
    assert means.mean() == pytest.approx(values.mean(), abs=0.005)
    assert means.std() == pytest.approx(values.std() / np.sqrt(6), rel=0.02)  # the plug-in standard error
    monkeypatch.setattr(bootstrap_module, "_BLOCK", 60)
    assert np.array_equal(resampled_means(values, 20_000, seed=3), means)


def test_without_a_comparison_the_champion_stays():
    decision = decide(PromotionConfig(), None, 4)
    assert not decision.promotes
    assert not decision.is_worse
    assert "round 4" in decision.reason


def test_worse_beyond_noise_is_said():
    found = compare(greedy(["wrong"] * 9 + ["ok"]), greedy(["ok"] * 9 + ["wrong"]), PromotionConfig(), seed=1)
    assert decide(PromotionConfig(), found, 0).is_worse
    found = compare(greedy(["wrong", "ok", "ok"]), greedy(["ok", "ok", "wrong"]), PromotionConfig(), seed=1)
    decision = decide(PromotionConfig(), found, 0)
    assert (decision.outcome, decision.is_worse) == ("refused", False)


def test_an_empty_evaluation_has_nothing_to_compare():
    assert compare(EVALUATION.empty_table(), EVALUATION.empty_table(), FAST, seed=1) is None


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"promotion": {"score": "avg_at_k"}, "evaluation": {"samples": 0}}, "evaluation.samples"),
        ({"promotion": {"enabled": False, "go_back": "when_worse"}}, "promotion.go_back"),
        ({"promotion": {"model": "a/b"}}, "promotion.model"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(section, key):
    with pytest.raises(ValueError, match=key):
        RunConfig.model_validate(section)


verdict_lists = st.lists(st.tuples(st.sampled_from(VERDICTS), st.sampled_from(VERDICTS)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(verdict_lists, st.integers(0, 2**63))
def test_equal_answers_are_never_promoted(pairs, seed):
    table = greedy([one for one, _ in pairs])
    found = compare(table, table, FAST, seed=seed)
    if found is not None:
        assert (found.difference, found.better, found.worse) == (0.0, 0.0, 0.0)
    decision = decide(FAST, found, 0)
    assert (decision.outcome, decision.is_worse) == ("refused", False)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["wrong", "unparsable"]), min_size=1, max_size=12), st.integers(0, 2**63))
def test_better_on_every_prompt_is_promoted(before, seed):
    found = compare(greedy(["ok"] * len(before)), greedy(before), FAST, seed=seed)
    assert decide(FAST, found, 0).outcome == "promoted"
    found = compare(greedy(before), greedy(["ok"] * len(before)), FAST, seed=seed)
    assert decide(FAST, found, 0).is_worse


@settings(max_examples=30, deadline=None)
@given(verdict_lists, st.integers(0, 2**63), st.integers(0, 100))
def test_the_order_of_rows_changes_nothing(pairs, seed, shuffle):
    one, other = zip(*pairs, strict=True)
    plain = compare(greedy(one), greedy(other), FAST, seed=seed)
    assert compare(greedy(one, shuffle), greedy(other, shuffle + 1), FAST, seed=seed) == plain


@settings(max_examples=40, deadline=None)
@given(verdict_lists, st.integers(0, 2**63))
def test_changing_sides_turns_the_signs(pairs, seed):
    one, other = (greedy(side) for side in zip(*pairs, strict=True))
    found, turned = compare(one, other, FAST, seed=seed), compare(other, one, FAST, seed=seed)
    if found is None or turned is None:
        assert found is turned
        return
    assert found.difference == -turned.difference
    assert (found.candidate_score, found.champion_score) == (turned.champion_score, turned.candidate_score)
    assert (found.better, found.worse) == (turned.worse, turned.better)
    assert found.low == pytest.approx(-turned.high, abs=1e-12)
    assert found.low <= found.high
    assert isinstance(found, Comparison)
