import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.diagnostics import advantage_metrics
from grpo_core.diagnostics.advantages import uniform_distance


def table(values: list[float], in_loss: list[bool] | None = None) -> pa.Table:
    return pa.table(
        {
            "prompt_id": ["a"] * len(values),
            "zero_variance": [False] * len(values),
            "in_loss": in_loss or [True] * len(values),
            "advantage": values,
        }
    )


def test_distribution_by_hand():
    metrics = advantage_metrics(table([-1.0, -1.0, -1.0, 3.0, 7.0], [True, True, True, True, False]))
    assert metrics["advantage_positive_share"] == 0.25
    assert metrics["advantage_q10"] == metrics["advantage_median"] == -1.0
    assert metrics["advantage_q90"] == pytest.approx(-1 + 0.7 * 4)  # 0.9 * 3 steps = 2.7 lies between -1 and 3
    # Mean 0, cubes -1 -1 -1 +27 over 4 = 6; variance 12 / 4 = 3.
    assert metrics["advantage_skew"] == pytest.approx(6 / 3**1.5)
    assert metrics["advantage_uniform_distance"] == 0.75  # three quarters of it stand at the least value


def test_equal_advantages_have_no_skew_and_no_distance():
    metrics = advantage_metrics(table([0.1, 0.1, 0.1]))
    assert metrics["advantage_std"] == pytest.approx(0)
    assert "advantage_skew" not in metrics
    assert "advantage_uniform_distance" not in metrics


def test_nothing_in_the_loss_has_no_distribution():
    assert "advantage_median" not in advantage_metrics(table([0.0, 0.0], [False, False]))


@pytest.mark.parametrize("size", [2, 5, 8])
def test_ranks_without_ties_are_as_uniform_as_values_can_be(size):
    ranks = np.tile(np.linspace(-1, 1, size), 3)
    assert uniform_distance(ranks) == pytest.approx(1 / size)


@given(st.integers(1, 20), st.integers(1, 20))
def test_two_kinds_of_reward_have_the_share_of_the_larger_kind(low, high):
    distance = uniform_distance(np.array([-0.3] * low + [2.5] * high))
    assert distance == pytest.approx(max(low, high) / (low + high))
