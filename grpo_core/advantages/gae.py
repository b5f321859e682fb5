"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438) over completions of unequal length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GaeEstimates:
    """One array a completion, in the order of the input, each of shape (tokens,)."""

    advantages: list[Floats]
    returns: list[Floats]  # advantage + value: what the value head learns to predict


def gae(
    values: Sequence[npt.NDArray[np.floating]], rewards: Sequence[float], *, gamma: float, lambda_: float
) -> GaeEstimates:
    """A_t = sum over k of (gamma * lambda)^k * delta_{t+k}, delta_t = r_t + gamma * V_{t+1} - V_t (equations 11, 16).

    The reward comes with the last token. Nothing follows it, so V behind it is 0, for a completion cut off at its
    longest as well: it was paid for as it stands.

    Args:
        values: V_t, the value before token t was chosen, one array of shape (tokens,) a completion.
        rewards: one finite number a completion.
        gamma: discount a token, in [0, 1].
        lambda_: in [0, 1]; 0 trusts the values wholly (one step of bias), 1 not at all (Monte Carlo minus a baseline).

    Raises:
        ValueError: lengths that differ, an empty completion, or a number that is not finite.
    """
    if len(values) != len(rewards):
        raise ValueError(f"{len(values)} completions have values and {len(rewards)} have a reward")
    if not values:
        return GaeEstimates([], [])
    lengths = np.array([len(value) for value in values])
    if lengths.min() == 0:
        raise ValueError(f"completion {int(lengths.argmin())} has no token")
    # Behind the end everything is 0, and so is what is carried into the last token.
    columns = np.arange(lengths.max() + 1)
    value = np.zeros((len(values), len(columns)))
    value[columns < lengths[:, None]] = np.concatenate([np.asarray(v, dtype=np.float64) for v in values])
    reward = np.zeros_like(value)
    reward[np.arange(len(values)), lengths - 1] = rewards
    if not (np.isfinite(value).all() and np.isfinite(reward).all()):
        raise ValueError("values and rewards of completions must be finite")
    advantage = np.zeros_like(value)
    for place in reversed(range(len(columns) - 1)):
        delta = reward[:, place] + gamma * value[:, place + 1] - value[:, place]
        advantage[:, place] = delta + gamma * lambda_ * advantage[:, place + 1]
    pairs = list(zip(advantage, value, lengths, strict=True))
    return GaeEstimates([a[:n] for a, _, n in pairs], [a[:n] + v[:n] for a, v, n in pairs])


def whiten(advantages: Sequence[Floats], epsilon: float = 1e-8) -> list[Floats]:
    """Shift and scale to mean 0 and variance 1 (of a population) over the tokens of all completions together.

    (a - mean) / sqrt(variance + epsilon), as in lm-human-preferences (Ziegler et al. 2019, arXiv 1909.08593). Where all
    are equal there is nothing to prefer and every one becomes exactly 0.
    """
    if not advantages:
        return []
    flat = np.concatenate(advantages)
    if flat.min() == flat.max():
        return [np.zeros_like(one) for one in advantages]
    mean, deviation = flat.mean(), np.sqrt(flat.var() + epsilon)
    return [(one - mean) / deviation for one in advantages]
