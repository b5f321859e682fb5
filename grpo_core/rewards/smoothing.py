"""Exponential smoothing of each component over consecutive rounds: a common scale that moves slowly.

Let a be the decay (``reward.smoothing``), and mean_n and var_n the mean and the population variance of a component over
all its valid values in round n. The state after round n is

    m_n = a m_{n-1} + (1 - a) mean_n        v_n = a v_{n-1} + (1 - a) var_n        with  m_1 = mean_1,  v_1 = var_1.

In round n a component's value r enters the weighted sum as

    r' = (r - m_{n-1}) / max(sqrt(v_{n-1}), 0.05)

so each component is measured against its own recent past, and weights compare standard deviations. The state is that
*before* the round, never of it: a shard can then be scored without the others, and a rollout's reward does not depend
on who else is in the round. Where there is no past (round 1, or a component never valid before) r' = r.

The shift cancels in a group-relative advantage; it matters to estimators that compare across groups. The scale matters
to all. The floor of 0.05 keeps a component that was all but constant from drowning the others the day it moves.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from grpo_core.rewards.combine import Array

FILE = "smoothing.json"
_LEAST_STD = 0.05


@dataclass(frozen=True, slots=True)
class Moments:
    """Running mean and variance of one component."""

    mean: float
    variance: float


State = Mapping[str, Moments]


def smooth(values_NK: Array, names: list[str], past: State) -> Array:
    """r' of the module's formula, NaN where masked; ``past`` is the state after the round before."""
    smoothed = values_NK.copy()
    for k, name in enumerate(names):
        if name in past:
            scale = max(past[name].variance ** 0.5, _LEAST_STD)
            smoothed[:, k] = (values_NK[:, k] - past[name].mean) / scale
    return smoothed


def advance(past: State, values: Mapping[str, Array], decay: float) -> dict[str, Moments]:
    """The state after a round. ``values`` holds each component's raw values in it, NaN where masked.

    A component without any valid value keeps the state that it had.
    """
    state = dict(past)
    for name, raw in values.items():
        valid = raw[~np.isnan(raw)]
        if not valid.size:
            continue
        mean, variance = float(valid.mean()), float(valid.var())
        if name in past:
            mean = decay * past[name].mean + (1 - decay) * mean
            variance = decay * past[name].variance + (1 - decay) * variance
        state[name] = Moments(mean, variance)
    return state


def to_bytes(state: State) -> bytes:
    """The state as JSON; Python writes floats so that they read back exactly."""
    return (json.dumps({name: asdict(state[name]) for name in sorted(state)}, indent=1) + "\n").encode()


def from_bytes(data: bytes) -> dict[str, Moments]:
    return {name: Moments(**moments) for name, moments in json.loads(data).items()}
