"""What people's labels change in scores, by hand, and that they change nothing else."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from said import label

from grpo_core.labels.config import LabelsConfig
from grpo_core.labels.corrections import Corrections, corrected, corrections
from grpo_core.labels.label import Label
from grpo_core.labels.tiers import tier_pairs
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import build_reward
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict


def sample(response: str, prompt: str = "a", index: int = 0, gold: str = "42") -> Sample:
    return Sample(id=f"0002/{prompt}/{index}", response=response, gold=gold, group=f"0002/{prompt}")


def score(said: Sequence[Label], samples: Sequence[Sample], config: RewardConfig, **labels: Any) -> list[Score]:
    found = corrections(said)

    def correct(function: RewardFunction) -> RewardFunction:
        return corrected(function, found, {}, config, LabelsConfig(**labels))

    with build_reward(config, correct=correct) as reward:
        return list(reward(samples))


MATH = RewardConfig(correct=2.0, box_bonus=0.5, workers=1)


@pytest.mark.parametrize(
    ("response", "said", "verdict", "reward", "components"),
    [
        ("41", label(), "ok", 2.0, {"correct": 2.0, "box": 0.0}),
        ("\\boxed{41}", label(), "ok", 2.5, {"correct": 2.0, "box": 0.5}),  # equal answer, in a box: its bonus is kept
        ("\\boxed{42}", label(extracted="42", value="wrong"), "wrong", 0.5, {"correct": 0.0, "box": 0.5}),
        ("\\boxed{41}", label(value="unparsable"), "unparsable", 0.0, {"correct": 0.0, "box": 0.0}),
        ("no idea", label(extracted=None, completion="no idea"), "ok", 2.0, {"correct": 2.0, "box": 0.0}),
    ],
)
def test_math_pays_as_if_its_check_had_said_so(
    response: str, said: Label, verdict: str, reward: float, components: dict[str, float]
) -> None:
    (found,) = score([said], [sample(response)], MATH)
    assert (found.verdict, found.reward, dict(found.components)) == (verdict, reward, components)
    assert f"said a person: {verdict} by ann, the check: " in found.detail


def test_unparsable_by_a_person_is_masked_where_the_config_masks_it() -> None:
    (found,) = score([label(value="unparsable")], [sample("41")], MATH.model_copy(update={"unparsable": "mask"}))
    assert (found.verdict, found.reward) == (Verdict.UNPARSABLE, None)


@pytest.mark.parametrize(
    "other",
    [sample("41", prompt="b"), sample("40"), sample("something")],
    ids=["another prompt", "another answer", "no answer"],
)
def test_other_answers_and_prompts_stay_as_they_are(other: Sample) -> None:
    (before,), (after,) = score([], [other], MATH), score([label()], [other], MATH)
    assert (after.verdict, after.reward, after.detail) == (before.verdict, before.reward, before.detail)


def test_a_label_without_an_answer_speaks_of_the_very_text_alone() -> None:
    said = label(extracted=None, completion="41")  # the text of a rollout that has an answer: not the same finding
    (found,) = score([said], [sample("41")], MATH)
    assert (found.verdict, found.detail) == (Verdict.WRONG, "")


def test_a_label_that_agrees_changes_nothing() -> None:
    (found,) = score([label(value="wrong")], [sample("41")], MATH)
    assert (found.reward, found.detail) == (0.0, "")


def test_any_other_reward_pays_what_the_config_says_and_the_rest_of_the_sum_stays() -> None:
    config = RewardConfig.model_validate(
        {
            "verdict_from": "right",
            "components": {
                "form": {"reward": "format", "weight": 0.5},
                "right": {"reward": "facts", "weight": 2.0},
            },
        }
    )
    said = label(extracted=None, completion="\\boxed{41}")
    (before,) = score([], [sample("\\boxed{41}")], config)
    assert (before.verdict, before.reward, dict(before.components)) == ("wrong", 0.5, {"form": 1.0, "right": 0.0})
    (found,) = score([said], [sample("\\boxed{41}")], config, pays_ok=0.75)
    assert (found.verdict, found.reward) == ("ok", pytest.approx(0.5 + 2.0 * 0.75))
    assert dict(found.components) == {"form": 1.0, "right": 0.75}


def test_people_who_disagree_are_counted_and_the_latest_counts() -> None:
    said = [
        label(),
        label(value="wrong", who="bob", at="2026-01-03T00:00:00.000Z", assessment_id="a-2"),
        label(kind="gold", value="41", who="bob", assessment_id="a-3"),
        label(kind="gold", value="41", assessment_id="a-4"),
    ]
    found = corrections(said)
    assert found.conflicts == 1
    assert found.verdicts["a", True, "41"].who == "bob"
    assert found.golds["a"].who == "ann"
    assert not corrections([label(kind="comment"), label(kind="tier", value="top")])


def test_a_corrected_gold_is_told_with_what_stood_there() -> None:
    said = Corrections({}, {"a": label(kind="gold", value="41")}, 0)
    function = corrected(
        lambda samples: [Score(Verdict.OK, 1.0) for _ in samples], said, {"a": "4" * 90}, MATH, LabelsConfig()
    )
    first, second = function([sample("41", gold="41"), sample("41", prompt="b")])
    assert first.detail == f"said a person: gold by ann, before: {'4' * 80}…"
    assert second.detail == ""


answers = st.sampled_from([None, "1", "2"])
verdicts = st.sampled_from(["ok", "wrong", "unparsable"])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), answers, verdicts), max_size=6),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), answers, st.sampled_from(list(Verdict))), max_size=6),
)
def test_each_score_follows_the_last_word_on_its_answer(said: list[Any], rows: list[Any]) -> None:
    """Against the rule written down once more, in its plainest form."""
    labels = [
        label(
            prompt_id=prompt,
            extracted=answer,
            completion="text",
            value=value,
            at=f"2026-01-0{n + 1}",
            assessment_id=str(n),
        )
        for n, (prompt, answer, value) in enumerate(said)
    ]
    config = RewardConfig(name="facts")
    before = [Score(v, 0.5 if v.is_finding else None, {"x": 0.5}, answer, "d") for _, answer, v in rows]
    function = corrected(lambda _: before, corrections(labels), {}, config, LabelsConfig(pays_ok=3.0, pays_wrong=-1.0))
    after = function([sample("text", prompt=prompt) for prompt, _, _ in rows])
    for (prompt, answer, verdict), old, new in zip(rows, before, after, strict=True):
        spoken = [value for p, a, value in said if (p, a) == (prompt, answer)]
        if not spoken or spoken[-1] == verdict:
            assert new is old
        else:
            assert (new.verdict, new.reward) == (spoken[-1], 3.0 if spoken[-1] == "ok" else -1.0)
            assert new.detail.startswith("d; said a person: ")


def test_tiers_are_pairs_of_reward_and_tier() -> None:
    said = [
        label(kind="tier", value="top", reward=0.5),
        label(kind="tier", value="bottom", reward=-1.0),
        label(kind="tier", value="7", reward=0.25),
        label(kind="tier", value="top", reward=None),
        label(reward=9.0),
    ]
    assert tier_pairs(said, 3) == ((0.5, 2), (-1.0, 0), (0.25, 7))
