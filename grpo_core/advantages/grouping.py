"""Rewards by group: what every estimator asks of them, with an exact test for groups that teach nothing."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Groups:
    """The rewards of some rollouts, grouped. Groups may differ in size, and their rows need not be adjacent."""

    reward: Floats  # (rollouts,), NaN where there is none
    of: Ints  # (rollouts,), the number of a rollout's group
    valid: Bools  # (rollouts,), has a reward
    size: Ints  # (groups,)
    valid_size: Ints  # (groups,), rollouts with a reward
    mean: Floats  # (groups,), over valid rewards; NaN where there are none
    dead: Bools  # (groups,), all valid rewards equal, or fewer than two of them

    @property
    def live(self) -> Bools:
        """Which rollouts have a reward, in a group that is not dead; shape (rollouts,)."""
        return self.valid & ~self.dead[self.of]

    def total(self, values: Floats) -> Floats:
        """Sums of ``values`` (rollouts,) over the valid rollouts of each group; shape (groups,)."""
        return sum_by(self.of[self.valid], values[self.valid], len(self.size))

    def std(self, ddof: int) -> Floats:
        """The std of each group's valid rewards; NaN where there are none; shape (groups,)."""
        squares = self.total((self.reward - self.mean[self.of]) ** 2)
        std = np.sqrt(squares / np.maximum(self.valid_size - ddof, 1))
        return np.where(self.valid_size == 0, np.nan, std)

    def where_live(self, values: Floats) -> Floats:
        """``values`` (rollouts,) at live rollouts, exactly 0 elsewhere."""
        return np.where(self.live, values, 0.0)


def group_rewards(rewards: npt.ArrayLike, group_index: npt.ArrayLike) -> Groups:
    """Group rewards by their labels.

    A dead group is found by max == min before any arithmetic: the mean of n times 0.1 is not 0.1 in floating point,
    and the residue over a small std would be noise that looks like a signal.

    Args:
        rewards: shape (rollouts,); NaN marks a rollout without a reward, which is masked out of statistics and loss.
        group_index: shape (rollouts,); equal labels form a group.

    Raises:
        ValueError: the shapes differ, or a reward is infinite.
    """
    reward = np.asarray(rewards, dtype=np.float64)
    labels = np.asarray(group_index)
    if reward.ndim != 1 or labels.shape != reward.shape:
        raise ValueError(f"rewards {reward.shape} and group_index {labels.shape} must be flat and of one length")
    if np.isinf(reward).any():
        raise ValueError(f"reward of row {int(np.isinf(reward).argmax())} is infinite; rewards are finite or NaN")
    _, of = np.unique(labels, return_inverse=True)
    count = int(of.max()) + 1 if of.size else 0
    valid = ~np.isnan(reward)
    member, values = of[valid], reward[valid]
    valid_size = np.bincount(member, minlength=count)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, member, values)
    np.maximum.at(high, member, values)
    dead = (valid_size < 2) | (low == high)
    mean = sum_by(member, values, count) / np.maximum(valid_size, 1)
    mean = np.where(dead, high, mean)  # the constant itself, free of rounding
    mean[valid_size == 0] = np.nan
    return Groups(reward, of, valid, np.bincount(of, minlength=count), valid_size, mean, dead)


def sum_by(labels: Ints, values: Floats, count: int) -> Floats:
    """Sums of ``values`` by label; shape (count,)."""
    return np.bincount(labels, weights=values, minlength=count).astype(np.float64)


def exact_mean(values: Floats) -> float:
    """The mean from a sum that is rounded once, so that no order of the values changes a bit. Needs a value."""
    return math.fsum(values) / values.size


def exact_std(values: Floats, ddof: int) -> float:
    """The std about ``exact_mean``, in any order the same to the bit; 0 for fewer than two values."""
    if values.size < 2:
        return 0.0
    return math.sqrt(math.fsum((values - exact_mean(values)) ** 2) / (values.size - ddof))
