"""What a verdict may pay, and further tries of failed checks."""

import math
from collections.abc import Sequence

import pytest

from grpo_core.rewards.reward import retried
from grpo_core.rewards.verdict import Sample, Score, Verdict, sound


@pytest.mark.parametrize("verdict", [Verdict.TIMEOUT, Verdict.ERROR, Verdict.MISSING])
def test_no_finding_pays_nothing_not_even_zero(verdict: Verdict) -> None:
    assert sound(Score(verdict, 0.0)).reward is None


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.WRONG])
@pytest.mark.parametrize("reward", [None, math.nan, math.inf, -math.inf])
def test_a_finding_without_a_finite_reward_is_an_error(verdict: Verdict, reward: float | None) -> None:
    found = sound(Score(verdict, reward))
    assert (found.verdict, found.reward) == (Verdict.ERROR, None)
    assert found.detail == f"the reward is {reward}"


def test_unparsable_may_be_masked_and_a_bad_component_is() -> None:
    assert sound(Score(Verdict.UNPARSABLE, None)).verdict is Verdict.UNPARSABLE
    assert sound(Score(Verdict.OK, 1.0, {"a": math.nan, "b": 2.0})).components == {"a": None, "b": 2.0}


class Flaky:
    """Fails each sample as often as its gold says; keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.tries: dict[str, int] = {}

    def __call__(self, samples: Sequence[Sample]) -> list[Score]:
        self.calls.append([sample.id for sample in samples])
        scores = []
        for sample in samples:
            self.tries[sample.id] = self.tries.get(sample.id, 0) + 1
            failed = self.tries[sample.id] <= int(sample.gold)
            value = float(len(self.calls))
            verdict = Verdict.TIMEOUT if failed else Verdict.OK
            scores.append(Score(verdict, None if failed else value, seconds=1.0))
        return scores


SAMPLES = [
    Sample("a", "", "0", group="g"),
    Sample("b", "", "1", group="g"),
    Sample("c", "", "0", group="h"),
    Sample("d", "", "2", group=""),
]


def test_failed_checks_are_tried_again_after_all_others() -> None:
    flaky = Flaky()
    scores = retried(flaky, 1, whole_groups=False)(SAMPLES)
    assert flaky.calls == [["a", "b", "c", "d"], ["b", "d"]]
    assert [(s.verdict.value, s.reward, s.seconds) for s in scores] == [
        ("ok", 1.0, 1.0),
        ("ok", 2.0, 2.0),
        ("ok", 1.0, 1.0),
        ("timeout", None, 2.0),
    ]


def test_a_comparing_reward_sees_the_whole_group_again_but_only_failures_change() -> None:
    flaky = Flaky()
    scores = retried(flaky, 5, whole_groups=True)(SAMPLES)
    assert flaky.calls == [["a", "b", "c", "d"], ["a", "b", "d"], ["d"]]
    assert [s.reward for s in scores] == [1.0, 2.0, 1.0, 3.0]


def test_no_retries_no_second_call() -> None:
    flaky = Flaky()
    retried(flaky, 0, whole_groups=False)(SAMPLES)
    assert len(flaky.calls) == 1
