import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.advantages.config import AdvantageConfig
from grpo_core.advantages.estimate import Batch, estimate
from grpo_core.advantages.prior import Prior, empty_prior, prior_boundaries, update_prior

NAN, INF = math.nan, math.inf


def test_edges_lie_halfway_between_centres() -> None:
    assert empty_prior(0.0, 2.0, 3).edges.tolist() == [0.5, 1.5]
    np.testing.assert_allclose(empty_prior(-1.0, 2.0, 301).edges[[0, 100, 200]], [-0.995, 0.005, 1.005], rtol=1e-12)


def test_a_round_enters_with_its_share_and_older_ones_fade() -> None:
    first = update_prior(empty_prior(0.0, 2.0, 3), np.array([0.0, 0.2, 1.0, NAN, 9.0]), decay=0.75)
    assert first.weight.tolist() == [0.5, 0.25, 0.25]  # 9 counts for the end bin, the missing one not at all
    second = update_prior(first, np.array([-3.0, 2.0]), decay=0.75)
    assert second.weight.tolist() == [0.75 * 0.5 + 0.125, 0.75 * 0.25, 0.75 * 0.25 + 0.125]
    assert update_prior(second, np.array([NAN]), decay=0.75) is second


def test_boundaries_by_hand() -> None:
    # Middles of the bins: 0.25, 0.625, 0.875 of the weight; times 3: tiers 0, 1, 2. Times 2: 0, 1, 1.
    prior = Prior(0.0, 2.0, np.array([0.5, 0.25, 0.25]))
    assert prior_boundaries(prior, 3).tolist() == [0.5, 1.5]
    assert prior_boundaries(prior, 2).tolist() == [0.5]
    # Nine tenths of zeros are the middle tier, as among the rewards of a round: nothing lies below.
    assert prior_boundaries(Prior(0.0, 2.0, np.array([0.9, 0.1, 0.0])), 3).tolist() == [-INF, 0.5]
    assert prior_boundaries(empty_prior(0.0, 2.0, 3), 3).tolist() == [INF, INF]


def test_boundaries_follow_the_rewards_but_remember() -> None:
    config = AdvantageConfig(estimator="adaptive_tiers", prior_decay=0.5)
    poor, rich = np.array([0.0, 0.1, 0.2, 0.3]), np.array([0.7, 0.8, 0.9, 1.0])

    def step(reward: np.ndarray, number: int, prior: Prior | None) -> tuple[Prior, list[float], list[int]]:
        found = estimate(Batch(reward, np.zeros(4), np.arange(4)), config, number, prior)
        assert found.prior is not None
        assert found.boundaries is not None
        assert found.advantages.tier is not None
        return found.prior, found.boundaries.tolist(), found.advantages.tier.tolist()

    prior, first, tiers = step(poor, 1, None)
    assert tiers == [0, 1, 1, 2]
    prior, second, tiers = step(rich, 2, prior)
    # Half of the prior is poor: middles at 9/16, 11/16, 13/16, 15/16. Nothing is at the bottom.
    assert tiers == [1, 2, 2, 2]
    assert first < second
    for number in range(3, 12):
        prior, last, tiers = step(rich, number, prior)
    assert tiers == [0, 1, 1, 2]  # now this is the usual
    assert second < last


def test_tiers_grow_by_the_schedule() -> None:
    batch = Batch(np.arange(8.0), np.zeros(8), np.arange(8))
    config = AdvantageConfig(estimator="tiers", tier_schedule=[[1, 3], [5, 4], [9, 2]])
    counts = [len(np.unique(estimate(batch, config, number).advantages.tier)) for number in (1, 4, 5, 8, 9, 100)]
    assert counts == [3, 3, 4, 4, 2, 2]


weights = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=20)


@given(weights, st.integers(2, 5))
def test_any_prior_survives_its_file_and_has_rising_boundaries(weight: list[float], count: int) -> None:
    prior = Prior(-0.1, 1 / 3, np.array(weight))
    again = Prior.from_bytes(prior.to_bytes())
    assert (again.low, again.high, again.weight.tolist()) == (prior.low, prior.high, weight)
    edges = prior_boundaries(prior, count)
    assert edges.shape == (count - 1,)
    assert (edges[:-1] <= edges[1:]).all()
