import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.advantages.gae import gae, whiten

unit = st.floats(0, 1)
number = st.floats(-10, 10)
ragged = st.lists(st.tuples(st.lists(number, min_size=1, max_size=9), number), min_size=1, max_size=6)


def test_three_tokens_by_hand() -> None:
    # gamma 0.9, lambda 0.8, V = 0.5, 0.6, 0.7, reward 1 at the end.
    # delta = 0.54 - 0.5 = 0.04; 0.63 - 0.6 = 0.03; 1 - 0.7 = 0.3, each carried back by 0.72:
    # A2 = 0.3; A1 = 0.03 + 0.216 = 0.246; A0 = 0.04 + 0.17712 = 0.21712; the return is A + V.
    found = gae([np.array([0.5, 0.6, 0.7])], [1.0], gamma=0.9, lambda_=0.8)
    np.testing.assert_allclose(found.advantages[0], [0.21712, 0.246, 0.3], rtol=1e-14)
    np.testing.assert_allclose(found.returns[0], [0.71712, 0.846, 1.0], rtol=1e-14)


def test_completions_of_unequal_length_do_not_touch_each_other() -> None:
    # The one token: A = 2 - 0.25. Two tokens: A1 = -1 - 1 = -2; A0 = 0.9 * 1 - 0 + 0.72 * -2 = -0.54.
    found = gae(
        [np.array([0.25]), np.array([0.5, 0.6, 0.7]), np.array([0.0, 1.0])], [2.0, 1.0, -1.0], gamma=0.9, lambda_=0.8
    )
    for one, wanted in zip(found.advantages, ([1.75], [0.21712, 0.246, 0.3], [-0.54, -2.0]), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-14)


@given(ragged, unit, unit)
def test_the_definition_as_a_sum_over_later_tokens(rows: list[tuple[list[float], float]], g: float, lam: float) -> None:
    found = gae([np.array(v) for v, _ in rows], [r for _, r in rows], gamma=g, lambda_=lam)
    for (values, reward), advantages, returns in zip(rows, found.advantages, found.returns, strict=True):
        after, last = [*values[1:], 0.0], len(values) - 1
        deltas = [(reward if t == last else 0.0) + g * after[t] - values[t] for t in range(len(values))]
        wanted = [sum((g * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(values))]
        np.testing.assert_allclose(advantages, wanted, atol=1e-9)
        np.testing.assert_allclose(returns, np.add(wanted, values), atol=1e-9)


@given(ragged)
def test_lambda_one_without_discount_is_the_reward_minus_the_value(rows: list[tuple[list[float], float]]) -> None:
    found = gae([np.array(v) for v, _ in rows], [r for _, r in rows], gamma=1.0, lambda_=1.0)
    for (values, reward), advantages in zip(rows, found.advantages, strict=True):
        np.testing.assert_allclose(advantages, reward - np.array(values), atol=1e-9)


@pytest.mark.parametrize(
    ("values", "rewards"), [([[0.1]], []), ([[]], [1.0]), ([[math.nan]], [1.0]), ([[0.1]], [math.inf])]
)
def test_what_has_no_advantage_is_refused(values: list[list[float]], rewards: list[float]) -> None:
    with pytest.raises(ValueError, match=r"have values|no token|finite"):
        gae([np.array(one) for one in values], rewards, gamma=1.0, lambda_=1.0)


def test_no_completion_no_advantage() -> None:
    assert gae([], [], gamma=1.0, lambda_=1.0).advantages == []
    assert whiten([]) == []


def test_whitening_by_hand_over_all_tokens_and_not_per_completion() -> None:
    # 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5.
    one, two = whiten([np.array([1.0, 2.0, 3.0]), np.array([6.0])], epsilon=0.0)
    np.testing.assert_allclose([*one, *two], np.array([-2, -1, 0, 3]) / math.sqrt(3.5), rtol=1e-14)


@pytest.mark.parametrize("count", [3, 7, 10])
def test_equal_advantages_whiten_to_exactly_zero(count: int) -> None:
    assert all((one == 0).all() for one in whiten([np.full(count, 0.1), np.full(1, 0.1)]))


@given(ragged)
def test_whitened_tokens_have_mean_zero_and_variance_one(rows: list[tuple[list[float], float]]) -> None:
    advantages = [np.array(values) for values, _ in rows]
    spread = np.concatenate(advantages).var()
    flat = np.concatenate(whiten(advantages))
    assert abs(flat.mean()) < 1e-6
    # Where the variance is as small as epsilon itself, epsilon holds the quotient down.
    np.testing.assert_allclose(flat.var(), spread / (spread + 1e-8), atol=1e-6)
