"""The dead-group table: 11 constants x 9 group sizes, and every advantage exactly 0, for every estimator."""

from typing import get_args

import numpy as np
import pytest

from grpo_core.advantages.config import AdvantageConfig, Estimator
from grpo_core.advantages.estimate import Batch, Estimate, estimate
from grpo_core.advantages.prior import empty_prior, update_prior

CONSTANTS = [0.0, 0.1, 0.2, 0.3, 0.7, 0.9, 1.0, 1 / 3, 1e-8, 1e8, -0.1]
SIZES = [1, 2, 3, 4, 5, 8, 16, 64, 1000]
ESTIMATORS = get_args(Estimator)
COMPARE_ROUNDS = ("tiers", "adaptive_tiers")
FORMS = [(name, {}) for name in ESTIMATORS] + [(n, {"rank_form": "unit"}) for n in ("rank", *COMPARE_ROUNDS)]
LIVE = [0.0, 1.0, 0.0, 0.0, 1.0]


def constants_for(estimator: str) -> list[float]:
    return [c for c in CONSTANTS if c >= 0] if estimator == "maxrl" else CONSTANTS  # it refuses what is negative


def run(estimator: str, rewards: list[float], groups: list[int], **config: object) -> Estimate:
    reward = np.array(rewards)
    batch = Batch(
        reward=reward,
        group=np.array(groups),
        sample=np.arange(len(rewards)),
        length=7 + np.arange(len(rewards)) % 13,
        components={"correct": reward, "format": np.full_like(reward, 0.1)},
    )
    return estimate(batch, AdvantageConfig(estimator=estimator, **config))


@pytest.mark.parametrize(("estimator", "config"), FORMS)
def test_a_batch_of_one_constant_has_no_advantage(estimator: str, config: dict[str, object]) -> None:
    for constant in constants_for(estimator):
        for size in SIZES:
            for groups in ([0] * size, [row % 3 for row in range(size)]):
                found = run(estimator, [constant] * size, groups, **config).advantages
                assert np.abs(found.advantage).max() == 0, (constant, size)
                assert not found.in_loss.any(), (constant, size)


@pytest.mark.parametrize(("estimator", "config"), [form for form in FORMS if form[0] not in COMPARE_ROUNDS])
def test_a_dead_group_among_live_ones_has_no_advantage(estimator: str, config: dict[str, object]) -> None:
    for constant in constants_for(estimator):
        for size in SIZES:
            found = run(estimator, [constant] * size + LIVE, [0] * size + [1] * len(LIVE), **config).advantages
            assert np.abs(found.advantage[:size]).max() == 0, (constant, size)
            assert found.in_loss.tolist() == [False] * size + [True] * len(LIVE), (constant, size)
            assert np.abs(found.advantage[size:]).max() > 0, (constant, size)


@pytest.mark.parametrize("estimator", COMPARE_ROUNDS)
def test_tiers_compare_across_groups_so_equal_rewards_in_one_group_carry_signal(estimator: str) -> None:
    # Three zeros, three ones, each its own group. Zeros: tier 0, rank 1/2, (0 + 1/2) / 3 = 1/6; ones 5/6; mean 1/2.
    found = run(estimator, [0.0] * 3 + [1.0] * 3, [0] * 3 + [1] * 3).advantages
    assert found.zero_variance.all()
    assert found.in_loss.all()
    np.testing.assert_allclose(found.advantage, [-1 / 3] * 3 + [1 / 3] * 3, rtol=1e-15)


def test_one_constant_is_dead_for_adaptive_tiers_whatever_the_prior_says() -> None:
    prior = update_prior(empty_prior(-1.0, 2.0, 301), np.array([0.0, 0.0, 1.0]), 0.9)
    batch = Batch(reward=np.full(4, 0.9), group=np.zeros(4), sample=np.arange(4))
    found = estimate(batch, AdvantageConfig(estimator="adaptive_tiers"), round_number=2, prior=prior).advantages
    assert found.advantage.tolist() == [0.0] * 4
    assert not found.in_loss.any()


def test_components_that_cancel_in_the_sum_are_not_dead_for_gdpo() -> None:
    # The total is 1 everywhere; by component the two rollouts differ. z-scores with ddof 1 are +-1 / sqrt 2.
    batch = Batch(
        reward=np.ones(2),
        group=np.zeros(2),
        sample=np.arange(2),
        components={"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])},
    )
    found = estimate(batch, AdvantageConfig(estimator="gdpo", component_weights={"a": 3, "b": 1}, epsilon=1e-12))
    np.testing.assert_allclose(found.advantages.advantage, [np.sqrt(0.5), -np.sqrt(0.5)])
    assert found.advantages.in_loss.all()
    assert found.advantages.zero_variance.all()  # of the total
