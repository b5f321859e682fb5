"""Several components, one reward: sums, masks, groups, smoothing."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_core.rewards.combine import normalise_in_groups, total_reward
from grpo_core.rewards.composite import composite, group_index
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.smoothing import Moments, advance, from_bytes, smooth, to_bytes
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict

NAN = math.nan


def test_weighted_sum_by_hand_and_a_masked_component_masks_the_rollout() -> None:
    values = np.array([[1.0, 2.0, NAN], [NAN, 2.0, 1.0], [0.0, -1.0, 0.0]])
    total = total_reward(values, np.array([0.5, 0.25, 0.0]))
    assert total[[0, 2]].tolist() == [1.0, -0.25]
    assert math.isnan(total[1])


def test_each_component_is_normalised_in_its_group_by_hand() -> None:
    # Group 0: component 0 is 1, 3 (mean 2, std sqrt 2), component 1 has one valid value; group 1: component 0 constant.
    values = np.array([[1.0, 5.0], [0.1, 0.0], [3.0, NAN], [0.1, 4.0], [0.1, 2.0]])
    found = normalise_in_groups(values, np.array([0, 1, 0, 1, 1]))
    r = 1 / (math.sqrt(2) + 1e-4)
    np.testing.assert_allclose(found[:, 0], [-r, 0.0, r, 0.0, 0.0])
    np.testing.assert_allclose(found[:, 1], [0.0, -2 / 2.0001, NAN, 2 / 2.0001, 0.0])
    assert found[1, 0] == 0.0  # exactly: no residue of the mean of three times 0.1


@given(
    st.lists(st.floats(-100, 100), min_size=4, max_size=4, unique=True),
    st.floats(0.01, 1000),
    st.floats(-1000, 1000),
)
def test_normalising_forgets_a_components_unit(values: list[float], scale: float, shift: float) -> None:
    r = np.array([values]).T
    if np.ptp(r) < 1 or np.ptp(r) * scale < 1:  # where epsilon counts
        return
    groups = np.zeros(4, dtype=np.int64)
    np.testing.assert_allclose(
        normalise_in_groups(r * scale + shift, groups), normalise_in_groups(r, groups), atol=2e-3
    )


def test_groups_are_told_by_their_name_and_the_nameless_stand_alone() -> None:
    samples = [Sample(str(n), "", "", group=group) for n, group in enumerate(["x", "", "y", "x", ""])]
    index = group_index(samples)
    assert index[0] == index[3]
    assert len(set(index.tolist())) == 4


def fixed(*scores: Score) -> RewardFunction:
    return lambda samples: list(scores[: len(samples)])


def ok(value: float) -> Score:
    return Score(Verdict.OK, value, extracted=str(value))


FAILED = Score(Verdict.TIMEOUT, None, detail="over 2 s")
WRONG = Score(Verdict.WRONG, 0.0, extracted="7", detail="7 is not 42")


def config(weights: dict[str, float], **more: object) -> RewardConfig:
    components = {name: {"reward": "x:y", "weight": weight} for name, weight in weights.items()}
    return RewardConfig.model_validate({"components": components, **more})


def scored(parts: dict[str, RewardFunction], settings: RewardConfig, count: int) -> Sequence[Score]:
    return composite(parts, settings, {})([Sample(str(n), "", "", group="g") for n in range(count)])


def test_components_stay_raw_and_the_first_gives_the_verdict() -> None:
    parts = {"right": fixed(ok(1.0), WRONG), "brief": fixed(ok(0.5), ok(0.25))}
    first, second = scored(parts, config({"right": 2.0, "brief": 4.0}), 2)
    assert (first.verdict, first.reward, dict(first.components)) == (Verdict.OK, 4.0, {"brief": 0.5, "right": 1.0})
    assert (second.verdict, second.reward, second.extracted) == (Verdict.WRONG, 1.0, "7")
    other = scored(parts, config({"right": 2.0, "brief": 4.0}, verdict_from="brief"), 2)
    assert [s.verdict for s in other] == [Verdict.OK, Verdict.OK]


def test_a_masked_component_that_counts_masks_the_rollout_and_says_why() -> None:
    parts = {"right": fixed(ok(1.0)), "judge": fixed(FAILED)}
    (score,) = scored(parts, config({"right": 1.0, "judge": 0.1}), 1)
    assert (score.verdict, score.reward, score.detail) == (Verdict.TIMEOUT, None, "judge: over 2 s")
    assert dict(score.components) == {"right": 1.0, "judge": None}
    (score,) = scored(parts, config({"right": 1.0, "judge": 0.0}), 1)
    assert (score.verdict, score.reward) == (Verdict.OK, 1.0)
    (score,) = scored(parts, config({"right": 1.0, "judge": 0.0}, verdict_from="judge"), 1)
    assert (score.verdict, score.reward) == (Verdict.TIMEOUT, None)


def test_gdpo_tells_apart_what_a_sum_confuses() -> None:
    # The paper's point: (1, 0) and (0, 1) have one sum, but beat their group in different components.
    parts = {"a": fixed(ok(1), ok(0), ok(0), ok(0)), "b": fixed(ok(0), ok(1), ok(1), ok(1))}
    weights = {"a": 1.0, "b": 1.0}
    assert [s.reward for s in scored(parts, config(weights), 4)] == [1.0, 1.0, 1.0, 1.0]
    gdpo = [s.reward for s in scored(parts, config(weights | {"b": 0.5}, combine="gdpo"), 4)]
    # Each component: three alike and one other, std 1/2, so 1.5 and -0.5 before epsilon.
    expected = [1.5 - 0.75, -0.5 + 0.25, -0.5 + 0.25, -0.5 + 0.25]
    assert gdpo == pytest.approx(expected, abs=1e-3)


def test_smoothing_by_hand() -> None:
    first = advance({}, {"a": np.array([1.0, 3.0, NAN]), "b": np.array([NAN, NAN, NAN])}, 0.75)
    assert first == {"a": Moments(2.0, 1.0)}
    second = advance(first, {"a": np.array([4.0, 4.0]), "b": np.array([1.0, 1.0])}, 0.75)
    assert second == {"a": Moments(2.5, 0.75), "b": Moments(1.0, 0.0)}
    assert from_bytes(to_bytes(second)) == second
    values = smooth(np.array([[4.0, 1.5, 7.0], [NAN, 1.0, 8.0]]), ["a", "b", "new"], second)
    # b never varied: its scale is the floor; what is new has no past.
    expected = [[1.5 / math.sqrt(0.75), 0.5 / 0.05, 7.0], [NAN, 0.0, 8.0]]
    np.testing.assert_allclose(values, expected)


@given(st.dictionaries(st.sampled_from("abc"), st.tuples(st.floats(-1e9, 1e9), st.floats(0, 1e9))))
def test_the_state_comes_back_from_disk_to_the_last_bit(state: dict[str, tuple[float, float]]) -> None:
    moments = {name: Moments(*pair) for name, pair in state.items()}
    assert from_bytes(to_bytes(moments)) == moments


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"components": {"A b": {"reward": "math"}}}, "small letters"),
        ({"components": {"a": {"reward": "math", "weight": 0}}}, "every weight is 0"),
        ({"components": {"a": {"reward": "math"}}, "options": {"n": 1}}, "inside each component"),
        ({"components": {"a": {"reward": "math"}}, "verdict_from": "b"}, "not among components"),
        ({"components": {"a": {"reward": "math"}}, "combine": "gdpo", "smoothing": 0.5}, "changes nothing"),
        ({"combine": "gdpo"}, "needs components"),
        ({"smoothing": 0.5}, "works on components"),
        ({"smoothing": 1.0}, "less than 1"),
        ({"components": {"a": {"reward": "math", "wieght": 1}}}, "wieght"),
    ],
)
def test_config_refuses(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RewardConfig.model_validate(wrong)
