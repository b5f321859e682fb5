"""The running prior of adaptive tiers: a histogram of rewards in which older rounds weigh less and less."""

import json
from dataclasses import dataclass

import numpy as np

from grpo_core.advantages.grouping import Floats


@dataclass(frozen=True, slots=True)
class Prior:
    """Shares of the rewards seen so far by bin, summing to 1. ``low`` and ``high`` are the centres of the end bins."""

    low: float
    high: float
    weight: Floats  # (bins,)

    def to_bytes(self) -> bytes:
        """JSON; floats are written so that reading gives the same bits."""
        return (json.dumps({"low": self.low, "high": self.high, "weight": self.weight.tolist()}) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Prior":
        value = json.loads(data)
        return cls(value["low"], value["high"], np.array(value["weight"], dtype=np.float64))

    @property
    def edges(self) -> Floats:
        """Least rewards of all bins but the first, halfway between centres; shape (bins - 1,)."""
        bins = len(self.weight)
        return self.low + (self.high - self.low) * (np.arange(1, bins) - 0.5) / (bins - 1)


def empty_prior(low: float, high: float, bins: int) -> Prior:
    """The prior before any reward was seen: all weights are 0."""
    return Prior(low, high, np.zeros(bins))


def update_prior(prior: Prior, rewards: Floats, decay: float) -> Prior:
    """decay * prior + (1 - decay) * this round's histogram; the first round's histogram as it is.

    Args:
        rewards: shape (rollouts,); NaN where there is none. A round without any reward leaves the prior as it is.
    """
    values = rewards[~np.isnan(rewards)]
    if not values.size:
        return prior
    counts = np.bincount(np.searchsorted(prior.edges, values, "right"), minlength=len(prior.weight))
    seen = counts / values.size
    return Prior(prior.low, prior.high, decay * prior.weight + (1 - decay) * seen if prior.weight.any() else seen)


def prior_boundaries(prior: Prior, count: int) -> Floats:
    """Tier boundaries at the quantiles 1/count, 2/count, … of the prior; shape (count - 1,).

    A bin goes where its middle falls, by the rule of ``round_boundaries``. All are +inf before any reward was seen.
    """
    up_to = np.cumsum(prior.weight)
    if not up_to[-1] > 0:
        return np.full(count - 1, np.inf)
    middle = (up_to - prior.weight / 2) / up_to[-1]
    tier = np.maximum.accumulate(np.minimum(np.floor(count * middle), count - 1))
    least = np.append(-np.inf, prior.edges)
    return np.append(least, np.inf)[np.searchsorted(tier, np.arange(1, count), "left")]
