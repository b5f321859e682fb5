import numpy as np
import pytest

from grpo_core.diagnostics import choose_groups, update_direction


def arrays(*values: list[float]) -> list[np.ndarray]:
    return [np.array(value, dtype=np.float32) for value in values]


def test_direction_by_hand():
    before = arrays([-1.0, -2.0], [-1.0], [-3.0, -3.0], [-1.0])
    after = arrays([-0.5, -1.5], [-2.0], [-3.0, -2.0], [-9.0])
    # Means moved by +0.5 (A = 2), -1 (A = -1), +0.5 (A = -3), and -8 with A = 0, which counts for nothing.
    found = update_direction(before, after, [2.0, -1.0, -3.0, 0.0])
    assert found == {
        "direction": pytest.approx((0.5 + 1 - 0.5) / 3),
        "direction_weighted": pytest.approx((2 * 0.5 + 1 - 3 * 0.5) / 6),
        "direction_good": pytest.approx(0.5),
        "direction_bad": pytest.approx((-1 + 0.5) / 2),
    }


def test_the_wrong_way_is_negative():
    assert update_direction(arrays([0.0]), arrays([-1.0]), [1.0]) == {
        "direction": -1.0,
        "direction_weighted": -1.0,
        "direction_good": -1.0,
    }
    assert update_direction(arrays([0.0]), arrays([-1.0]), [0.0]) == {}
    assert update_direction([], [], []) == {}


def test_groups_are_chosen_by_content():
    prompts = [f"p{number}" for number in range(40)]
    chosen = choose_groups(prompts, 5, seed=1, round_number=3)
    assert len(chosen) == 5
    assert choose_groups([*reversed(prompts), *prompts], 5, seed=1, round_number=3) == chosen
    assert choose_groups(prompts, 5, seed=1, round_number=4) != chosen
    assert choose_groups(prompts, 0, seed=1, round_number=3) == set()
    assert choose_groups(prompts[:2], 5, seed=1, round_number=3) == {"p0", "p1"}
