"""Every estimator through the registry: numbers by hand, and properties that all of them share."""

import math
from itertools import combinations
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.advantages.config import AdvantageConfig, Estimator
from grpo_core.advantages.estimate import Batch, estimate
from grpo_core.advantages.grouping import group_rewards
from grpo_core.advantages.pass_at_k import pass_at_k
from grpo_core.errors import UserError

NAN = math.nan
REWARDS, GROUPS = [1.0, 2.0, 0.0, 0.0, 5.0, 1.0], [7, 3, 7, 7, 3, 7]  # group 7: 1 0 0 1, group 3: 2 5
E = 1e-4


def advantages(estimator: str, rewards: list[float], groups: list[int], **config: Any) -> list[float]:
    batch = Batch(np.array(rewards), np.array(groups), np.arange(len(rewards)))
    return estimate(batch, AdvantageConfig(estimator=estimator, **config)).advantages.advantage.tolist()


@pytest.mark.parametrize(
    ("estimator", "config", "expected"),
    [
        ("centred", {}, [0.5, -1.5, -0.5, -0.5, 1.5, 0.5]),
        # Leave one out: 1 - (0 + 0 + 1) / 3, 0 - (1 + 0 + 1) / 3, 2 - 5, 5 - 2.
        ("rloo", {}, [2 / 3, -3.0, -2 / 3, -2 / 3, 3.0, 2 / 3]),
        # All six: mean 3/2, squares 1/4 + 1/4 + 9/4 + 9/4 + 49/4 + 1/4 = 35/2, over 5 or 6.
        ("batch", {}, [x / (math.sqrt(3.5) + E) for x in (0.5, -1.5, -0.5, -0.5, 1.5, 0.5)]),
        ("batch", {"ddof": 0}, [x / (math.sqrt(35 / 12) + E) for x in (0.5, -1.5, -0.5, -0.5, 1.5, 0.5)]),
        # Centred: mean 0, squares 4 * 1/4 + 2 * 9/4 = 11/2, over 5.
        ("reinforce_pp_baseline", {}, [x / (math.sqrt(1.1) + E) for x in (0.5, -1.5, -0.5, -0.5, 1.5, 0.5)]),
        # r / mean - 1 with means 1/2 and 7/2.
        ("maxrl", {}, [1.0, 2 / 3.5 - 1, -1.0, -1.0, 5 / 3.5 - 1, 1.0]),
        # Ranks in group 7: zeros share (0 + 1) / 2 of 3, ones (2 + 3) / 2 of 3.
        ("rank", {"rank_form": "unit"}, [5 / 6, 0.0, 1 / 6, 1 / 6, 1.0, 5 / 6]),
        ("rank", {}, [1 / 3, -0.5, -1 / 3, -1 / 3, 0.5, 1 / 3]),
        # k = 2: what a rollout adds to the best of a pair. A one adds 1 to two of six pairs: 4 * 2 / 6; the 5 adds 3.
        ("pass_at_k", {"pass_k": 2}, [4 / 3, 0.0, 0.0, 0.0, 6.0, 4 / 3]),
    ],
)
def test_numbers_by_hand(estimator: str, config: dict[str, Any], expected: list[float]) -> None:
    np.testing.assert_allclose(advantages(estimator, REWARDS, GROUPS, **config), expected, rtol=1e-14, atol=1e-15)


def test_the_batch_std_counts_dead_groups() -> None:
    # 0 1 | 3 3: mean 7/4, squares 49/16 + 9/16 + 25/16 + 25/16 = 27/4, over 3.
    expected = 0.5 / (math.sqrt(2.25) + E)
    np.testing.assert_allclose(advantages("batch", [0, 1, 3, 3], [0, 0, 1, 1]), [-expected, expected, 0, 0], rtol=1e-15)


def test_opo_weighs_the_baseline_by_length() -> None:
    # Group 0: (10 * 1 + 30 * 0) / 40 = 1/4. Group 1: (1 * 4 + 3 * 2) / 4 = 5/2; the rollout without a reward is out.
    batch = Batch(
        reward=np.array([1.0, 0.0, 4.0, 2.0, NAN]),
        group=np.array([0, 0, 1, 1, 1]),
        sample=np.arange(5),
        length=np.array([10, 30, 1, 3, 1000]),
    )
    found = estimate(batch, AdvantageConfig(estimator="opo")).advantages
    assert found.advantage.tolist() == [0.75, -0.25, 1.5, -0.5, 0.0]
    assert found.in_loss.tolist() == [True] * 4 + [False]


def test_gdpo_by_hand() -> None:
    # ddof 0, so z-scores are +-1. Group 0: only "a" differs, S = 1, -1. Group 1, weights 1 and 3: S = 1 - 3, -1 + 3.
    # S = 1 -1 -2 2 has mean 0 and variance 10 / 4.
    batch = Batch(
        reward=np.array([1.0, 0.0, 1.0, 1.0]),
        group=np.array([0, 0, 1, 1]),
        sample=np.arange(4),
        components={"a": np.array([1.0, 0, 1, 0]), "b": np.array([0.1, 0.1, 0, 1]), "unused": np.array([9.0, 8, 7, 6])},
    )
    config = AdvantageConfig(estimator="gdpo", component_weights={"b": 3, "a": 1}, ddof=0, epsilon=1e-13)
    found = estimate(batch, config).advantages.advantage
    np.testing.assert_allclose(found, np.array([1, -1, -2, 2]) / math.sqrt(2.5), rtol=1e-11)


def test_gdpo_weighs_all_components_by_one_when_no_weights_are_given() -> None:
    batch = Batch(np.array([1.0, 0]), np.zeros(2), np.arange(2), components={"a": np.array([2.0, 1]), "b": np.zeros(2)})
    found = estimate(batch, AdvantageConfig(estimator="gdpo", ddof=0, epsilon=1e-13)).advantages.advantage
    np.testing.assert_allclose(found, [1, -1], rtol=1e-11)


def test_a_component_that_one_rollout_lacks_is_left_out_of_its_statistics() -> None:
    batch = Batch(
        np.array([1.0, 0, 1]), np.zeros(3), np.arange(3), components={"a": np.array([1.0, 0, NAN]), "b": np.zeros(3)}
    )
    found = estimate(batch, AdvantageConfig(estimator="gdpo", ddof=0, epsilon=1e-13)).advantages
    np.testing.assert_allclose(found.advantage, np.array([1, -1, 0]) / math.sqrt(2 / 3), rtol=1e-11)


@pytest.mark.parametrize(("n", "k"), [(2, 2), (4, 2), (5, 3), (6, 6), (7, 4)])
def test_pass_at_k_is_the_mean_over_all_sets_of_k(n: int, k: int) -> None:
    rewards = np.random.default_rng(n * k).choice([0.0, 0.1, 1.0, 1.1, 3.7], n)
    added = np.zeros(n)
    for chosen in combinations(range(n), k):
        for one in chosen:
            others = [rewards[i] for i in chosen if i != one]
            added[one] += max(rewards[list(chosen)]) - max(others)
    found, in_loss = pass_at_k(group_rewards(rewards, np.zeros(n)), k)
    np.testing.assert_allclose(found, n * added / math.comb(n, k), rtol=1e-12, atol=1e-15)
    assert in_loss.all()


def test_pass_at_k_of_binary_rewards_is_the_gradient_of_pass_at_k() -> None:
    # The derivative of 1 - (1 - p)^k by p is k (1 - p)^(k - 1), and so must be the estimate's mean over all groups.
    n, k, p = 6, 3, 0.3
    mean = 0.0
    for right in range(n + 1):
        rewards = np.array([1.0] * right + [0.0] * (n - right))
        found, _ = pass_at_k(group_rewards(rewards, np.zeros(n)), k)
        # The score of a right rollout is 1/p, of a wrong one -1/(1-p); the loss takes the mean over the group.
        gradient = (found * np.where(rewards == 1, 1 / p, -1 / (1 - p))).mean()
        mean += math.comb(n, right) * p**right * (1 - p) ** (n - right) * gradient
    assert mean == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-12)


def test_pass_at_k_needs_k_rewards() -> None:
    found = estimate(
        Batch(np.array([1.0, 0.0, NAN, 1.0, 0.0, 0.0]), np.array([0, 0, 0, 1, 1, 1]), np.arange(6)),
        AdvantageConfig(estimator="pass_at_k", pass_k=3),
    ).advantages
    assert found.in_loss.tolist() == [False] * 3 + [True] * 3
    assert found.advantage.tolist() == [0.0, 0.0, 0.0, 3.0, 0.0, 0.0]
    assert not found.zero_variance.any()


@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_a_round_without_any_reward_has_no_advantages(estimator: Estimator) -> None:
    batch = Batch(np.full(3, NAN), np.zeros(3), np.arange(3), length=np.ones(3, dtype=int), components={})
    found = estimate(batch, AdvantageConfig(estimator=estimator)).advantages
    assert found.advantage.tolist() == [0.0] * 3
    assert not found.in_loss.any()
    empty = np.zeros(0)
    nothing = Batch(empty, empty, empty.astype(int), length=empty.astype(int), components={})
    assert estimate(nothing, AdvantageConfig(estimator=estimator)).advantages.advantage.shape == (0,)


def test_the_estimators_refuse_what_they_cannot_use() -> None:
    rewards, groups, sample = np.array([1.0, -0.5]), np.zeros(2), np.arange(2)
    with pytest.raises(UserError, match="maxrl needs rewards of 0 or more"):
        estimate(Batch(rewards, groups, sample), AdvantageConfig(estimator="maxrl"))
    with pytest.raises(UserError, match="gdpo needs a reward with components"):
        estimate(Batch(rewards, groups, sample), AdvantageConfig(estimator="gdpo"))
    with pytest.raises(UserError, match="names 'b', and the reward's components are a; correct"):
        estimate(
            Batch(rewards, groups, sample, components={"a": rewards}),
            AdvantageConfig(estimator="gdpo", component_weights={"b": 1}),
        )
    with pytest.raises(ValueError, match="lengths"):
        estimate(Batch(rewards, groups, sample), AdvantageConfig(estimator="opo"))
    with pytest.raises(ValueError, match="below 1 token"):
        estimate(Batch(rewards, groups, sample, length=np.array([0, 1])), AdvantageConfig(estimator="opo"))


def batch_of(rows: list[tuple[float, int, int, float]], order: list[int]) -> Batch:
    """A batch of (reward, group, length, other component); a rollout keeps its sample index wherever its row stands."""
    reward, group, length, other = (np.array([rows[i][n] for i in order]) for n in range(4))
    sample = np.array(order, dtype=np.int64)
    return Batch(reward.astype(float), group, sample, length, {"total": reward.astype(float), "other": other})


row = st.tuples(
    st.one_of(st.floats(0, 100), st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.1, NAN])),
    st.integers(0, 4),
    st.integers(1, 50),
    st.sampled_from([0.0, 0.1, 0.7, NAN]),
)


@pytest.mark.parametrize("estimator", get_args(Estimator))
@given(rows=st.lists(row, min_size=1, max_size=30), random=st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_properties(estimator: str, rows: list[tuple[float, int, int, float]], random: Any) -> None:
    config = AdvantageConfig(estimator=estimator)
    straight, order = list(range(len(rows))), list(range(len(rows)))
    found = estimate(batch_of(rows, straight), config).advantages
    assert np.isfinite(found.advantage).all()
    assert (found.advantage[~found.in_loss] == 0).all()
    valid = ~np.isnan([r for r, *_ in rows])
    assert not found.in_loss[~valid].any()

    random.shuffle(order)  # no bit depends on where a row stands
    shuffled = estimate(batch_of(rows, order), config).advantages
    assert shuffled.advantage.tolist() == found.advantage[order].tolist()
    assert shuffled.in_loss.tolist() == found.in_loss[order].tolist()

    kept = np.flatnonzero(valid).tolist()  # nor on rollouts without a reward
    without = estimate(batch_of(rows, kept), config).advantages
    assert without.advantage.tolist() == found.advantage[kept].tolist()

    for i in kept:  # a greater reward in the same group is never worth less
        for j in kept:
            if rows[i][1] == rows[j][1] and rows[i][0] < rows[j][0] and estimator != "gdpo":
                assert found.advantage[i] <= found.advantage[j]
