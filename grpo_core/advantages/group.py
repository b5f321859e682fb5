"""The group-relative advantage of GRPO (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field


class AdvantageConfig(BaseModel):
    """How a rollout's reward becomes its advantage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    estimator: Literal["group"] = Field(
        "group", description="What a reward is compared with: the other rollouts of its prompt."
    )
    epsilon: float = Field(
        1e-4, gt=0, allow_inf_nan=False, description="Added to the group's std before the division by it."
    )
    ddof: Literal[0, 1] = Field(1, description="1: std of a sample (divide by n - 1); 0: of a population (by n).")


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """One entry a rollout, in the order of the input; every array has shape (rollouts,).

    ``group_mean`` and ``group_std`` are NaN where a group has no valid reward at all.
    """

    advantage: npt.NDArray[np.float64]  # exactly 0 wherever in_loss is False
    group_mean: npt.NDArray[np.float64]
    group_std: npt.NDArray[np.float64]
    group_size: npt.NDArray[np.int64]
    group_valid: npt.NDArray[np.int64]  # rollouts of the group that have a reward
    zero_variance: npt.NDArray[np.bool_]  # all valid rewards equal, or fewer than two of them
    in_loss: npt.NDArray[np.bool_]


def group_advantages(
    rewards: npt.NDArray[np.float64], group_index: npt.NDArray[np.integer], config: AdvantageConfig
) -> GroupAdvantages:
    """A = (r - mean) / (std + epsilon) over the valid rewards of a rollout's group.

    A group whose valid rewards are all equal teaches nothing and leaves the loss. It is found by max == min before any
    arithmetic: the mean of n times 0.1 is not 0.1 in floating point, and the residue over epsilon would be noise.

    Args:
        rewards: shape (rollouts,); NaN marks a rollout without a reward, which is masked out of statistics and loss.
        group_index: shape (rollouts,); equal labels form a group, whose rows need not be adjacent.

    Raises:
        ValueError: the shapes differ, or a reward is infinite.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    labels = np.asarray(group_index)
    if rewards.ndim != 1 or labels.shape != rewards.shape:
        raise ValueError(f"rewards {rewards.shape} and group_index {labels.shape} must be flat and of one length")
    if np.isinf(rewards).any():
        raise ValueError(f"reward of row {int(np.isinf(rewards).argmax())} is infinite; rewards are finite or NaN")

    _, group = np.unique(labels, return_inverse=True)
    count = int(group.max()) + 1 if group.size else 0
    valid = ~np.isnan(rewards)
    member, values = group[valid], rewards[valid]
    size = np.bincount(group, minlength=count)
    valid_size = np.bincount(member, minlength=count)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, member, values)
    np.maximum.at(high, member, values)
    dead = (valid_size < 2) | (low == high)

    empty = valid_size == 0
    mean = np.bincount(member, weights=values, minlength=count) / np.maximum(valid_size, 1)
    mean = np.where(dead, high, mean)  # the constant itself, free of rounding
    squares = np.bincount(member, weights=(values - mean[member]) ** 2, minlength=count)
    std = np.sqrt(squares / np.maximum(valid_size - config.ddof, 1))
    mean[empty], std[empty] = np.nan, np.nan

    in_loss = valid & ~dead[group]
    advantage = np.zeros_like(rewards)
    lively = group[in_loss]
    advantage[in_loss] = (rewards[in_loss] - mean[lively]) / (std[lively] + config.epsilon)
    return GroupAdvantages(
        advantage=advantage,
        group_mean=mean[group],
        group_std=std[group],
        group_size=size[group],
        group_valid=valid_size[group],
        zero_variance=dead[group],
        in_loss=in_loss,
    )
