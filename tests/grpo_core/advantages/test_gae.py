import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.advantages.gae import gae

NAN = math.nan


def test_three_tokens_by_hand() -> None:
    # delta = -1 + 2/2, -2 + 3/2, 10 - 3 = 0, -1/2, 7; A = 0 + 1.25 / 4, -1/2 + 7/4, 7.
    found = gae([10.0], [[1.0, 2.0, 3.0]], [[1, 1, 1]], gamma=0.5, lam=0.5)
    assert found.advantage.tolist() == [[0.3125, 1.25, 7.0]]
    assert found.returns.tolist() == [[1.3125, 3.25, 10.0]]


def test_lam_one_is_the_return_less_the_value_and_lam_zero_one_step() -> None:
    values = [[0.2, 0.5, 0.75]]
    np.testing.assert_allclose(gae([1.0], values, [[1, 1, 1]], 1.0, 1.0).advantage, [[0.8, 0.5, 0.25]], rtol=1e-15)
    np.testing.assert_allclose(gae([1.0], values, [[1, 1, 1]], 1.0, 0.0).advantage, [[0.3, 0.25, 0.25]], rtol=1e-15)


def test_ragged_completions_are_paid_at_their_own_last_token() -> None:
    found = gae([10.0, 4.0], [[1.0, 2.0, 3.0], [1.0, NAN, 99.0]], [[1, 1, 1], [1, 0, 0]], gamma=0.5, lam=0.5)
    assert found.advantage.tolist() == [[0.3125, 1.25, 7.0], [3.0, 0.0, 0.0]]
    assert found.returns.tolist() == [[1.3125, 3.25, 10.0], [4.0, 0.0, 0.0]]


def test_tokens_in_between_that_are_masked_are_passed_over() -> None:
    found = gae([10.0], [[1.0, -7.0, 2.0, 3.0, 8.0]], [[1, 0, 1, 1, 0]], gamma=0.5, lam=0.5)
    assert found.advantage.tolist() == [[0.3125, 0.0, 1.25, 7.0, 0.0]]


def test_rewards_by_token() -> None:
    # delta = 1 + 2 - 1, 5 - 2 with gamma 1; lam 1.
    found = gae([[1.0, 5.0, NAN]], [[1.0, 2.0, 3.0]], [[1, 1, 0]], gamma=1.0, lam=1.0)
    assert found.advantage.tolist() == [[5.0, 3.0, 0.0]]


def test_a_rollout_without_a_reward_or_without_tokens_is_out() -> None:
    found = gae([NAN, 1.0, 3.0], [[1.0, 2.0], [0.0, 0.0], [1.0, 1.0]], [[1, 1], [0, 0], [1, 1]], 1.0, 1.0)
    assert found.in_loss.tolist() == [[False, False], [False, False], [True, True]]
    assert found.advantage.tolist() == [[0.0, 0.0], [0.0, 0.0], [2.0, 2.0]]
    assert found.returns.tolist() == [[0.0, 0.0], [0.0, 0.0], [3.0, 3.0]]


def test_whitening_by_hand_leaves_the_returns() -> None:
    # Advantages 1 and 3: mean 2, variance 2 with ddof 1.
    found = gae([1.0, 3.0], [[0.0, 9.0], [0.0, 9.0]], [[1, 0], [1, 0]], 1.0, 1.0, whitened=True)
    np.testing.assert_allclose(found.advantage, [[-1 / math.sqrt(2), 0], [1 / math.sqrt(2), 0]], rtol=1e-7)
    assert found.returns.tolist() == [[1.0, 0.0], [3.0, 0.0]]


@pytest.mark.parametrize("rewards", [[0.1], [0.1] * 3, [0.9] * 8])
def test_equal_advantages_are_whitened_to_exactly_zero(rewards: list[float]) -> None:
    values, mask = np.zeros((len(rewards), 2)), np.ones((len(rewards), 2))
    assert not gae(rewards, values, mask, 1.0, 1.0, whitened=True).advantage.any()


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 1))
def test_the_sum_of_discounted_deltas(seed: int, gamma: float, lam: float) -> None:
    draw = np.random.default_rng(seed)
    reward, value = draw.normal(size=(1, 6)), draw.normal(size=(1, 6))
    found = gae(reward, value, np.ones((1, 6)), gamma, lam).advantage[0]
    delta = reward[0] + gamma * np.append(value[0, 1:], 0) - value[0]
    expected = [sum((gamma * lam) ** n * d for n, d in enumerate(delta[t:])) for t in range(6)]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [[1.0]], [[1, 1]]), "do not fit"),
        (([1.0, 2.0], [[1.0]], [[1]]), "do not fit"),
        (([1.0], [[NAN]], [[1]]), "not finite"),
        (([math.inf], [[0.0]], [[1]]), "not finite"),
        (([[NAN]], [[0.0]], [[1]]), "not finite"),
        (([1.0], [[0.0]], [[1]], 1.1), "gamma 1.1"),
        (([1.0], [[0.0]], [[1]], 1.0, -0.1), "lam -0.1"),
    ],
)
def test_what_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gae(*arguments)
