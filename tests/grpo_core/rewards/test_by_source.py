"""Samples sent to the reward of their source."""

from collections.abc import Sequence

from grpo_core.rewards.by_source import by_source
from grpo_core.rewards.reward import Reward
from grpo_core.rewards.verdict import Sample, Score, Verdict


def paying(value: float, seen: list[list[str]], closed: list[float]) -> Reward:
    def score(samples: Sequence[Sample]) -> list[Score]:
        seen.append([sample.id for sample in samples])
        return [Score(Verdict.OK, value, {"correct": value}) for _ in samples]

    return Reward(score, lambda: closed.append(value))


def test_each_sample_meets_its_own_reward_once_and_in_order() -> None:
    seen: list[list[str]] = []
    closed: list[float] = []
    own, code = paying(1.0, seen, closed), paying(2.0, seen, closed)
    mixed = by_source(own, {"c": ("my.pkg:Fn", code)})
    samples = [Sample(str(n), "", "", source=source) for n, source in enumerate(["a", "c", "", "c", "b"])]
    scores = mixed(samples)
    assert [score.reward for score in scores] == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert [dict(score.components) for score in scores[:2]] == [{"correct": 1.0}, {"my_pkg_fn_correct": 2.0}]
    assert seen == [["0", "2", "4"], ["1", "3"]]
    assert mixed([]) == []
    mixed.close()
    assert sorted(closed) == [1.0, 2.0]


def test_without_other_rewards_it_is_the_own_one() -> None:
    own = paying(1.0, [], [])
    assert by_source(own, {}) is own
