"""Estimators that subtract a baseline taken from a rollout's own group. A dead group is exactly 0 in each of them."""

import numpy as np

from grpo_core.advantages.grouping import Bools, Floats, Groups, exact_mean, exact_std
from grpo_core.errors import UserError


def centred(groups: Groups) -> Floats:
    """A = r - mean of the group: Dr. GRPO (Liu et al. 2025, arXiv 2503.20783); shape (rollouts,)."""
    return groups.where_live(groups.reward - groups.mean[groups.of])


def batch_scaled(groups: Groups, epsilon: float, ddof: int) -> Floats:
    """A = (r - mean of the group) / (std of all rewards of the batch + epsilon); shape (rollouts,).

    Lite PPO (Liu et al. 2025, arXiv 2508.08221). The std is over every valid reward, those of dead groups too.
    """
    return centred(groups) / (exact_std(groups.reward[groups.valid], ddof) + epsilon)


def leave_one_out(groups: Groups) -> Floats:
    """A = r - mean of the group's other rewards: RLOO (Ahmadian et al. 2024, arXiv 2402.14740); shape (rollouts,)."""
    others = np.maximum(groups.valid_size - 1, 1)
    return centred(groups) * (groups.valid_size / others)[groups.of]


def whitened(groups: Groups, epsilon: float, ddof: int) -> Floats:
    """B = r - mean of the group, then A = (B - mean of B) / (std of B + epsilon) over the batch; shape (rollouts,).

    REINFORCE++ with baseline (Hu et al. 2025, arXiv 2501.03262). Mean and std are over rollouts, each counting once,
    the zeros of dead groups too.
    """
    return groups.where_live(whiten(centred(groups), groups.valid, epsilon, ddof))


def whiten(values: Floats, counts: Bools, epsilon: float, ddof: int) -> Floats:
    """(values - mean) / (std + epsilon), with mean and std over the entries where ``counts``; any shape.

    Entries that are all equal become exactly 0.
    """
    kept = values[counts]
    if kept.size == 0 or kept.min() == kept.max():
        return np.zeros_like(values)
    return (values - exact_mean(kept)) / (exact_std(kept, ddof) + epsilon)


def length_weighted(groups: Groups, lengths: Floats) -> Floats:
    """A = r - sum(l r) / sum(l) over the group: OPO (Hao et al. 2025, arXiv 2505.23585); shape (rollouts,).

    Args:
        lengths: shape (rollouts,), completion lengths in tokens, at least 1.

    Raises:
        ValueError: a length of a rollout with a reward is below 1.
    """
    if (lengths[groups.valid] < 1).any():
        raise ValueError("a completion has a length below 1 token")
    weight = np.where(groups.valid, lengths, 0.0)
    baseline = groups.total(weight * groups.reward) / np.maximum(groups.total(weight), 1.0)
    return groups.where_live(groups.reward - baseline[groups.of])


def mean_normalised(groups: Groups) -> Floats:
    """A = (r - mean) / mean of the group, that is r / mean - 1: MaxRL (Tajwar et al. 2026, arXiv 2602.02710).

    For rewards of 0 and 1 it is the gradient of a truncated log-likelihood; any rewards from 0 up are taken.

    Raises:
        UserError: a reward is negative.
    """
    if (groups.reward[groups.valid] < 0).any():
        raise UserError(
            f"advantage.estimator maxrl needs rewards of 0 or more, and one is {np.nanmin(groups.reward)}; choose "
            "another estimator or a reward of 0 and 1."
        )
    total = groups.total(groups.reward)
    positive = np.where(total > 0, total, 1.0)  # only a dead group sums to 0
    return groups.where_live(groups.reward * groups.valid_size[groups.of] / positive[groups.of] - 1)
