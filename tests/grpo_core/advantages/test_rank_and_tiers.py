import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_core.advantages.config import AdvantageConfig
from grpo_core.advantages.estimate import Batch, estimate
from grpo_core.advantages.grouping import group_rewards
from grpo_core.advantages.rank import group_ranks, shared_ranks
from grpo_core.advantages.tiers import move_boundaries, round_boundaries, tier_ranks

NAN, INF = math.nan, math.inf


def boundaries(rewards: list[float], count: int) -> list[float]:
    return round_boundaries(np.array(rewards), count).tolist()


def tiers(rewards: list[float], edges: list[float]) -> list[int]:
    return tier_ranks(np.array(rewards), np.array(edges), "unit").tier.tolist()


def test_ties_share_their_average_rank() -> None:
    # 1 1 3 7: the ones hold places 0 and 1 of 3, on average 1/6. Each label is ranked on its own, a value alone is 1/2.
    ranks = shared_ranks(np.array([3.0, 1, 1, 7, 5, 9, 4]), np.array([0, 0, 0, 0, 1, 2, 1]))
    assert ranks.tolist() == [2 / 3, 1 / 6, 1 / 6, 1.0, 1.0, 0.5, 0.0]


def test_a_rank_says_nothing_about_distance() -> None:
    near, far = [0.0, 0.1, 0.2], [0.0, 5.0, 900.0]
    found = [group_ranks(group_rewards(r, [0, 0, 0]), "unit")[0].tolist() for r in (near, far)]
    assert found[0] == found[1] == [0.0, 0.5, 1.0]


def test_rank_of_dead_and_single_and_missing() -> None:
    advantage, rank = group_ranks(group_rewards([0.1, 0.1, 4.0, NAN, 2.0, NAN], [0, 0, 1, 1, 2, 3]), "unit")
    assert advantage.tolist() == [0.0] * 6
    np.testing.assert_array_equal(rank, [0.5, 0.5, 0.5, NAN, 0.5, NAN])


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.3, 1.0, NAN]), st.integers(0, 3)), max_size=30))
def test_the_forms_of_rank(rows: list[tuple[float, int]]) -> None:
    groups = group_rewards([r for r, _ in rows], np.array([g for _, g in rows], dtype=int))
    unit, centred = group_ranks(groups, "unit")[0], group_ranks(groups, "centred")[0]
    assert ((unit >= 0) & (unit <= 1)).all()
    assert (np.abs(centred) <= 0.5).all()
    np.testing.assert_array_equal(centred[groups.live], unit[groups.live] - 0.5)
    np.testing.assert_allclose(groups.total(centred), 0, atol=1e-12)


def test_boundaries_are_quantiles_of_the_round() -> None:
    assert boundaries([0.5, 0.1, 0.9, 0.3, 0.7, 0.2], 3) == [0.3, 0.7]
    assert boundaries([0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4], 4) == [0.3, 0.5, 0.8]
    assert boundaries([5.0, 1, 9, 3, 7, 2], 3) == [3.0, 7.0]  # they move with the rewards


@pytest.mark.parametrize(
    ("zeros", "ones", "tier_of_zero", "tier_of_one"),
    [(9, 1, 1, 2), (1, 9, 0, 1), (5, 5, 0, 2), (2, 1, 1, 2), (1, 2, 0, 2), (30, 1, 1, 2), (1, 30, 0, 1), (7, 3, 1, 2)],
)
def test_equal_rewards_are_never_parted(zeros: int, ones: int, tier_of_zero: int, tier_of_one: int) -> None:
    # The middle of nine zeros of ten is at 45 %: the middle third. The middle of the 1 is at 95 %: the top third.
    # Of two zeros of three it is at 1/3 to the point: the upper tier; of two ones of three at 2/3, likewise.
    rewards = [0.0] * zeros + [1.0] * ones
    assert set(tiers(rewards, boundaries(rewards, 3))) == {tier_of_zero, tier_of_one}
    assert tiers([0.0, 1.0], boundaries(rewards, 3)) == [tier_of_zero, tier_of_one]


def test_a_tier_may_stay_empty() -> None:
    assert boundaries([1.0, 1.0], 3) == [1.0, INF]
    assert boundaries([], 3) == [INF, INF]
    assert boundaries([NAN, 2.0], 2) == [2.0]


def test_advantage_of_tiers_by_hand() -> None:
    # Tiers 0 | 1 2 2 | 5 by the boundaries 1 and 4. Ranks: alone 1/2; 1 is 0, the twos share 3/4; alone 1/2.
    found = tier_ranks(np.array([2.0, 0, NAN, 1, 5, 2]), np.array([1.0, 4.0]), "unit")
    assert found.tier.tolist() == [1, 0, -1, 1, 2, 1]
    np.testing.assert_array_equal(found.rank, [0.75, 0.5, NAN, 0, 0.5, 0.75])
    np.testing.assert_allclose(found.advantage, [1.75 / 3, 0.5 / 3, 0, 1 / 3, 2.5 / 3, 1.75 / 3], rtol=1e-15)
    assert found.in_loss.tolist() == [True, True, False, True, True, True]
    centred = tier_ranks(np.array([2.0, 0, NAN, 1, 5, 2]), np.array([1.0, 4.0]), "centred").advantage
    mean = (1.75 + 0.5 + 1 + 2.5 + 1.75) / 3 / 5
    np.testing.assert_allclose(centred, np.where(found.in_loss, found.advantage - mean, 0), atol=1e-15)


values = st.one_of(st.floats(-10, 10), st.sampled_from([0.0, 0.1, 1.0, NAN]))


@given(st.lists(values, max_size=40), st.integers(2, 5))
def test_tiers_of_any_round(rewards: list[float], count: int) -> None:
    reward = np.array(rewards)
    edges = round_boundaries(reward, count)
    assert edges.shape == (count - 1,)
    assert (edges[:-1] <= edges[1:]).all()
    found = tier_ranks(reward, edges, "unit")
    valid = ~np.isnan(reward)
    assert ((found.advantage >= 0) & (found.advantage <= 1)).all()
    assert (found.tier[valid] >= 0).all()
    assert (found.tier[valid] < count).all()
    by_reward = np.argsort(reward[valid])
    assert (np.diff(found.tier[valid][by_reward]) >= 0).all()
    assert (np.diff(found.advantage[valid][by_reward]) >= 0).all()
    distinct = np.unique(reward[valid])
    if len(distinct) == valid.sum():  # no ties: tiers are equal in size, but for one
        sizes = np.bincount(found.tier[valid], minlength=count)
        assert sizes.max() - sizes.min() <= 1
    centred = tier_ranks(reward, edges, "centred").advantage
    assert abs(centred.sum()) < 1e-12


def moved(edges: list[float], rewards: list[float], labels: list[int]) -> list[float]:
    return move_boundaries(np.array(edges), rewards, labels).tolist()


def test_labels_that_fall_on_their_side_move_nothing() -> None:
    assert moved([0.3, 0.7], [0.1, 0.3, 0.5, 0.9], [0, 1, 1, 2]) == [0.3, 0.7]
    assert moved([0.3, INF], [], []) == [0.3, INF]


def test_labels_move_a_boundary_as_little_as_needed() -> None:
    assert moved([0.3, 0.7], [0.2], [1]) == [0.2, 0.7]  # down to admit it
    assert moved([0.3, 0.7], [0.4], [0]) == [np.nextafter(0.4, 1), 0.7]  # up, just past it
    assert moved([0.3, 0.7], [0.8], [0]) == [np.nextafter(0.8, 1)] * 2  # and the upper one keeps above the lower one
    assert moved([0.3, 0.7], [0.1], [2]) == [0.1, 0.1]
    assert moved([0.3, INF], [0.9], [2]) == [0.3, 0.9]
    assert moved([-INF, INF], [0.2, 0.6], [0, 2]) == [np.nextafter(0.2, 1), 0.6]


def test_contradicting_labels_are_outvoted() -> None:
    # 0.5 is labelled top twice and bottom once; whoever disagrees at 0.6 stays alone.
    assert moved([0.55], [0.5, 0.5, 0.5, 0.6], [1, 1, 0, 0]) == [0.5]
    assert moved([0.55], [0.5, 0.5, 0.5, 0.6, 0.6], [1, 0, 0, 0, 1]) == [0.55]


@given(
    st.lists(st.one_of(st.sampled_from([0.0, 0.5, 1.0, INF, -INF]), st.floats(-2, 2)), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 1.5]), st.integers(0, 4)), max_size=8),
)
def test_moved_boundaries_misplace_as_few_labels_as_any_could(
    edges: list[float], labels: list[tuple[float, int]]
) -> None:
    edges = sorted(edges)
    reward = np.array([r for r, _ in labels])
    tier = np.minimum(np.array([t for _, t in labels], dtype=int), len(edges))
    found = move_boundaries(np.array(edges), reward, tier)
    assert (found[:-1] <= found[1:]).all()

    def wrong(number: int, boundary: float) -> int:
        return int(((reward >= boundary) != (tier >= number)).sum())

    for number, boundary in enumerate(found, start=1):
        least = min(wrong(number, place) for place in (-INF, INF, *reward, *np.nextafter(reward, INF)))
        assert wrong(number, boundary) == least
        if wrong(number, edges[number - 1]) == least and len(edges) == 1:
            assert boundary == edges[number - 1]


def test_labels_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        moved([0.5], [0.1], [])
    with pytest.raises(ValueError, match="no finite reward"):
        moved([0.5], [NAN], [0])
    with pytest.raises(ValueError, match="outside 0 to 1"):
        moved([0.5], [0.1], [2])


def test_labels_in_the_config_move_the_boundaries_of_a_round() -> None:
    rewards = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    batch = Batch(rewards, np.arange(6), np.zeros(6, dtype=int))
    plain = estimate(batch, AdvantageConfig(estimator="tiers"))
    assert plain.advantages.tier.tolist() == [0, 0, 1, 1, 2, 2]
    # 0.6 belongs on top, says a person; the label of a fourth tier waits for one.
    config = AdvantageConfig(estimator="tiers", tier_labels=((0.6, 2), (0.1, 3)))
    assert estimate(batch, config).advantages.tier.tolist() == [0, 0, 1, 2, 2, 2]
    with pytest.raises(ValidationError, match="does not read it"):
        AdvantageConfig(estimator="rank", tier_labels=((0.6, 2),))
