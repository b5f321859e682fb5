"""Tiers: a round's rollouts, of all prompts together, sorted by reward into tiers and ranked inside their tier.

A boundary is the least reward that a tier admits. ``count`` tiers, numbered from 0 at the bottom, have ``count - 1``
boundaries in rising order; +inf stands for a tier that admits none, -inf for one below which nothing lies.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grpo_core.advantages.grouping import Bools, Floats, Ints, exact_mean
from grpo_core.advantages.rank import RankForm, shared_ranks


@dataclass(frozen=True, slots=True)
class TierRanks:
    """One entry a rollout; every array has shape (rollouts,)."""

    advantage: Floats
    in_loss: Bools
    tier: Ints  # 0 is the bottom; -1 where there is no reward
    rank: Floats  # inside the tier, from 0 to 1; NaN where there is no reward


def round_boundaries(rewards: Floats, count: int) -> Floats:
    """Boundaries at the quantiles 1/count, 2/count, … of a round's rewards; shape (count - 1,).

    Equal rewards are never parted: they go where the middle of their block falls, so that the rule is the same seen
    from above and from below. Of nine zeros and a 1 the zeros are in the middle of three tiers, the 1 on top.

    Args:
        rewards: shape (rollouts,); NaN where there is none.
    """
    values = np.sort(rewards[~np.isnan(rewards)])
    below, up_to = np.searchsorted(values, values, "left"), np.searchsorted(values, values, "right")
    tier = count * (below + up_to) // max(2 * values.size, 1)
    return np.append(values, np.inf)[np.searchsorted(tier, np.arange(1, count), "left")]


def tier_ranks(rewards: Floats, boundaries: Floats, form: RankForm) -> TierRanks:
    """A = (tier + rank inside the tier) / number of tiers, from 0 to 1 (``unit``), or that less its mean (``centred``).

    A greater reward never gets a smaller advantage. Rollouts of all prompts are compared, so a group of equal rewards
    carries signal; a round of equal rewards carries none: every advantage is exactly 0 and out of the loss.

    Args:
        rewards: shape (rollouts,); NaN where there is none.
        boundaries: shape (tiers - 1,), rising.
    """
    valid = ~np.isnan(rewards)
    values = rewards[valid]
    tier, rank = np.full(rewards.shape, -1), np.full(rewards.shape, np.nan)
    tier[valid] = np.searchsorted(boundaries, values, "right")
    rank[valid] = shared_ranks(values, tier[valid])
    if not values.size or values.min() == values.max():
        return TierRanks(np.zeros_like(rewards), np.zeros_like(valid), tier, rank)
    standing = (tier + rank) / (len(boundaries) + 1)
    if form == "centred":
        standing = standing - exact_mean(standing[valid])
    return TierRanks(np.where(valid, standing, 0.0), valid, tier, rank)


def move_boundaries(boundaries: Floats, rewards: npt.ArrayLike, tiers: npt.ArrayLike) -> Floats:
    """Boundaries moved as little as needed for labelled rollouts to fall into their labelled tiers.

    Where labels contradict each other (a lower tier for a greater or equal reward) each boundary puts as few of them as
    possible on the wrong side, and among such places it takes the one nearest to where it was.

    Args:
        boundaries: shape (tiers - 1,), rising.
        rewards: shape (labels,), the rewards of the labelled rollouts.
        tiers: shape (labels,), the tier that each belongs to, from 0 to the number of boundaries.

    Raises:
        ValueError: the shapes differ, a reward is not finite, or a tier is out of range.
    """
    reward, tier = np.asarray(rewards, dtype=np.float64), np.asarray(tiers)
    if reward.shape != tier.shape or reward.ndim != 1:
        raise ValueError(f"rewards {reward.shape} and tiers {tier.shape} of labels must be flat and of one length")
    if not np.isfinite(reward).all():
        raise ValueError("a labelled rollout has no finite reward; leave it out")
    if ((tier < 0) | (tier > len(boundaries))).any():
        raise ValueError(f"a label names a tier outside 0 to {len(boundaries)}")
    # A boundary's labels change sides just above each labelled reward, so one place in each gap decides: the nearest.
    edges = np.unique(reward)
    least = np.append(-np.inf, np.nextafter(edges, np.inf))
    greatest = np.append(edges, np.inf)
    moved = []
    for number, boundary in enumerate(boundaries, start=1):
        places = np.clip(boundary, least, greatest)
        above = reward >= places[:, None]
        wrong = (above != (tier >= number)).sum(axis=1)
        moved.append(_nearest(places[wrong == wrong.min()], float(boundary)))
    return np.maximum.accumulate(np.array(moved, dtype=np.float64))


def _nearest(places: Floats, boundary: float) -> float:
    """The one of some rising places that is nearest to a boundary; the lower of two that are equally near."""
    lower, upper = places[places <= boundary].tolist(), places[places >= boundary].tolist()
    if not (lower and upper):
        return float((lower or upper)[-1 if lower else 0])
    return float(upper[0] if upper[0] - boundary < boundary - lower[-1] else lower[-1])
