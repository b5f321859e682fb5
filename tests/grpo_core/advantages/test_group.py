import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_core.advantages.config import AdvantageConfig
from grpo_core.advantages.group import GroupAdvantages, with_statistics, z_score
from grpo_core.advantages.grouping import group_rewards

NAN = math.nan
FIELDS = ("advantage", "group_mean", "group_std", "group_size", "group_valid", "zero_variance", "in_loss")


def advantages(rewards: list[float], groups: list[int], **config: object) -> GroupAdvantages:
    options = AdvantageConfig(**config)
    found = group_rewards(np.array(rewards, dtype=np.float64), np.array(groups, dtype=np.int64))
    return with_statistics(found, z_score(found, options.epsilon, options.ddof), found.live, options.ddof)


def test_numbers_by_hand_with_rows_that_are_not_adjacent() -> None:
    # Group 7: rewards 1, 0, 0, 1; mean 1/2, variance 4 * (1/4) / 3 = 1/3. Group 3: 2, 5; mean 7/2, std 3 / sqrt 2.
    found = advantages([1, 2, 0, 0, 5, 1], [7, 3, 7, 7, 3, 7])
    seven, three = 0.5 / (math.sqrt(1 / 3) + 1e-4), 1.5 / (3 / math.sqrt(2) + 1e-4)
    np.testing.assert_allclose(found.advantage, [seven, -three, -seven, -seven, three, seven], rtol=1e-15)
    np.testing.assert_allclose(found.group_mean, [0.5, 3.5, 0.5, 0.5, 3.5, 0.5], rtol=1e-15)
    np.testing.assert_allclose(found.group_std[:2], [math.sqrt(1 / 3), 3 / math.sqrt(2)], rtol=1e-15)
    assert found.group_size.tolist() == [4, 2, 4, 4, 2, 4]
    assert found.in_loss.all()
    assert not found.zero_variance.any()


def test_population_std_and_another_epsilon() -> None:
    found = advantages([0, 1], [0, 0], ddof=0, epsilon=0.5)
    assert found.group_std.tolist() == [0.5, 0.5]
    assert found.advantage.tolist() == [-0.5, 0.5]


@pytest.mark.parametrize("size", [2, 3, 5, 6, 7, 8, 10, 16, 64])
@pytest.mark.parametrize("constant", [0.1, 0.3, 0.7, 0.9, 1 / 3, 1.1, 1e-12, -0.1, 0.0, 1e16])
@pytest.mark.parametrize("ddof", [0, 1])
def test_a_dead_group_gets_exactly_zero_and_leaves_the_loss(constant: float, size: int, ddof: int) -> None:
    found = advantages([constant] * size + [0.0, 1.0], [0] * size + [1, 1], ddof=ddof)
    assert found.advantage[:size].tolist() == [0.0] * size
    assert found.zero_variance.tolist() == [True] * size + [False, False]
    assert found.in_loss.tolist() == [False] * size + [True, True]
    assert found.group_mean[:size].tolist() == [constant] * size
    assert found.group_std[:size].tolist() == [0.0] * size


def test_a_mean_and_a_std_would_miss_such_groups() -> None:
    # What the exact comparison is for: three times 0.1 over three is not 0.1, and the residue is no zero.
    rewards = np.array([0.1, 0.1, 0.1])
    assert (rewards - sum(rewards) / 3).any()
    assert not advantages(rewards.tolist(), [0, 0, 0]).advantage.any()


def test_neighbouring_floats_are_not_equal() -> None:
    found = advantages([0.9, np.nextafter(0.9, 1)], [0, 0])
    assert found.in_loss.all()
    assert found.advantage[0] < found.advantage[1]


def test_invalid_rollouts_leave_statistics_and_loss() -> None:
    found = advantages([1, NAN, 0, NAN, 4], [0, 0, 0, 1, 1])
    with_invalid, without = found, advantages([1, 0], [0, 0])
    assert with_invalid.advantage[[0, 2]].tolist() == without.advantage.tolist()
    assert found.advantage[[1, 3, 4]].tolist() == [0, 0, 0]
    assert found.in_loss.tolist() == [True, False, True, False, False]  # group 1 has one valid rollout only
    assert found.group_size.tolist() == [3, 3, 3, 2, 2]
    assert found.group_valid.tolist() == [2, 2, 2, 1, 1]
    assert found.zero_variance.tolist() == [False, False, False, True, True]
    assert found.group_mean[3:].tolist() == [4, 4]


def test_a_group_without_any_reward() -> None:
    found = advantages([NAN, NAN], [0, 0])
    assert np.isnan(found.group_mean).all()
    assert np.isnan(found.group_std).all()
    assert found.advantage.tolist() == [0, 0]
    assert found.zero_variance.all()
    assert not found.in_loss.any()


def test_no_rollouts() -> None:
    found = advantages([], [])
    assert all(getattr(found, name).shape == (0,) for name in FIELDS)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_reward_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="row 1 is infinite"):
        advantages([0, value], [0, 0])


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        advantages([0, 1], [0])


@pytest.mark.parametrize("bad", [{"epsilon": 0}, {"epsilon": math.inf}, {"ddof": 2}, {"estimator": "gae"}, {"eps": 1}])
def test_bad_config(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AdvantageConfig(**bad)


rewards_and_groups = st.lists(
    st.tuples(st.one_of(st.floats(-100, 100), st.sampled_from([0.0, 0.1, 1.0, 1.1, NAN])), st.integers(0, 4)),
    max_size=40,
)


@given(rewards_and_groups, st.randoms(use_true_random=False))
def test_properties(rows: list[tuple[float, int]], random: Random) -> None:
    rewards, groups = [r for r, _ in rows], [g for _, g in rows]
    found = advantages(rewards, groups)
    assert np.isfinite(found.advantage).all()
    assert (found.advantage[~found.in_loss] == 0).all()
    for group in set(groups):
        here = np.array(groups) == group
        valid = [r for r, g in rows if g == group and not math.isnan(r)]
        lively = len(valid) >= 2 and max(valid) != min(valid)
        assert found.in_loss[here].sum() == (len(valid) if lively else 0)
        assert abs(found.advantage[here].sum()) < 1e-6 * max(1, len(valid))
        # Never larger than the population's bound for the largest of n: (n - 1) / sqrt(n) with ddof = 1.
        assert np.abs(found.advantage[here]).max() <= max(1, len(valid) - 1) / math.sqrt(max(1, len(valid))) + 1e-9
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = advantages([rewards[i] for i in order], [groups[i] + 10 for i in order])
    np.testing.assert_allclose(shuffled.advantage, found.advantage[order], rtol=1e-6, atol=1e-9)
    assert shuffled.in_loss.tolist() == found.in_loss[order].tolist()
