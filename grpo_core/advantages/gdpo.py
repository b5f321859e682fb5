"""GDPO: each component of the reward is normalised on its own (Liu et al. 2026, arXiv 2601.05242)."""

import numpy as np
import numpy.typing as npt

from grpo_core.advantages.group import z_score
from grpo_core.advantages.grouping import Bools, Floats, group_rewards
from grpo_core.advantages.relative import whiten


def decoupled(
    components: Floats, group_index: npt.ArrayLike, weights: Floats, epsilon: float, ddof: int
) -> tuple[Floats, Bools]:
    """A_k = z-score of component k in its group, S = sum(w_k A_k), A = (S - mean of S) / (std of S + epsilon) over all.

    A component that is constant within a group adds exactly 0 there. A group in which every weighted component is
    constant is dead.

    Args:
        components: shape (rollouts, components); NaN where a rollout lacks a component; a row of NaN has no reward.
        group_index: shape (rollouts,); equal labels form a group.
        weights: shape (components,).

    Returns:
        Advantages and whether they are in the loss, both of shape (rollouts,).

    Raises:
        ValueError: the shapes differ, or a component is infinite.
    """
    if components.ndim != 2 or weights.shape != components.shape[1:]:
        raise ValueError(f"components {components.shape} need one weight each, and weights are {weights.shape}")
    summed, live = np.zeros(len(components)), np.zeros(len(components), dtype=bool)
    for values, weight in zip(components.T, weights, strict=True):
        groups = group_rewards(values, group_index)
        summed += weight * z_score(groups, epsilon, ddof)
        if weight != 0:
            live |= ~groups.dead[groups.of]
    valid = np.isnan(components).sum(axis=1) < components.shape[1]
    in_loss = valid & live
    return np.where(in_loss, whiten(summed, valid, epsilon, ddof), 0.0), in_loss
