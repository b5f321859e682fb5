"""Signs of hacked rewards, on numbers worked out by hand."""

import random

import numpy as np
import pytest

from grpo_core.rewards.monitor import common_answers, format_alone_share, near_duplicate_share, sketch, trend


def test_common_answers_are_shares_of_what_was_found() -> None:
    found = common_answers(["7", "42", None, "42", "7", "42", "1", "0"], top=3)
    assert found == [("42", 3 / 7), ("7", 2 / 7), ("0", 1 / 7)]
    assert common_answers([None]) == []


def test_share_of_reward_from_format_alone() -> None:
    components = [
        {"correct": 1.0, "box": 0.1},
        {"correct": 0.0, "box": 0.1},
        {"correct": 0.0, "box": 0.0},
        {"correct": None, "box": 0.2},
    ]
    weights = {"correct": 1.0, "box": 1.0}
    share = format_alone_share(components, [True, False, False, False], weights, ["box"])
    assert share == pytest.approx(0.3 / 1.4)
    assert format_alone_share(components, [True] * 4, weights, []) is None
    assert format_alone_share(components[2:3], [False], weights, ["box"]) is None
    # A weight counts, a penalty pays nothing.
    share = format_alone_share([{"form": 1.0, "long": -1.0}], [False], {"form": 0.5, "long": 2.0}, ["form"])
    assert share == 1.0


def test_near_duplicates_are_found_over_the_whole_round_and_others_are_not() -> None:
    draw = random.Random(0)
    texts = [[draw.randrange(1000) for _ in range(200)] for _ in range(20)]
    assert near_duplicate_share(texts) == 0.0
    changed = [*texts[3][:100], 7, *texts[3][101:]]  # 5 of 196 runs differ: Jaccard 191 / 201
    assert near_duplicate_share([*texts, changed, texts[9]]) == pytest.approx(4 / 22)
    half = [*texts[5][:100], *[draw.randrange(1000) for _ in range(100)]]
    assert near_duplicate_share([*texts, half]) == 0.0


def test_short_completions_are_duplicates_when_they_are_equal() -> None:
    assert near_duplicate_share([[4, 2], [4, 2], [4], [2, 4], [1, 2, 3, 4, 5, 6]]) == pytest.approx(2 / 5)
    assert near_duplicate_share([[], [], [1]]) == pytest.approx(2 / 3)
    assert near_duplicate_share([]) == 0.0


def test_sketches_estimate_jaccard() -> None:
    draw = random.Random(1)
    errors = []
    for _ in range(40):
        first = [draw.randrange(10_000) for _ in range(400)]
        second = [*first[: draw.randrange(400)], *[draw.randrange(10_000) for _ in range(200)]]
        a, b = ({tuple(ids[i : i + 5]) for i in range(len(ids) - 4)} for ids in (first, second))
        errors.append(np.mean(sketch(first) == sketch(second)) - len(a & b) / len(a | b))
    # The standard error of one estimate is at most 1/16; of the mean of forty, 1/100.
    assert abs(np.mean(errors)) < 0.04
    assert np.std(errors) < 0.09


def test_reward_up_while_held_out_stands_still() -> None:
    rising = {n: 0.1 * n for n in range(5)}
    flat = {0: 0.5, 2: 0.51, 4: 0.5}
    found = trend(rising, flat, stderr=0.02)
    assert found["reward_rise"] == pytest.approx(0.4)
    assert found["heldout_rise"] == pytest.approx(0.0)
    assert found["reward_up_heldout_flat"] == 1.0
    assert trend(rising, {0: 0.5, 2: 0.6, 4: 0.7}, stderr=0.02)["reward_up_heldout_flat"] == 0.0
    noisy = {0: 0.3, 1: 0.7, 2: 0.2, 3: 0.8, 4: 0.4}
    assert trend(noisy, flat, stderr=0.02)["reward_up_heldout_flat"] == 0.0
    falling = {n: -0.1 * n for n in range(5)}
    assert trend(falling, flat, stderr=0.02)["reward_up_heldout_flat"] == 0.0


def test_two_points_are_no_trend() -> None:
    assert trend({0: 0.0, 1: 1.0}, {0: 0.5, 1: 0.5, 2: 0.5}, 0.1) == {}
    assert trend({0: 0.0, 1: 1.0, 2: 2.0}, {0: 0.5, 1: 0.5}, 0.1) == {}
