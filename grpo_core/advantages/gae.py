"""Generalised advantage estimation over the tokens of completions (Schulman et al. 2015, arXiv 1506.02438)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grpo_core.advantages.grouping import Bools, Floats
from grpo_core.advantages.relative import whiten

_WHITEN_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class TokenAdvantages:
    """One entry a token; every array has shape (rollouts, tokens)."""

    advantage: Floats  # exactly 0 wherever in_loss is False
    returns: Floats  # what the values should have been: advantage before whitening + value; 0 outside the loss
    in_loss: Bools  # the mask, less the rollouts without a reward


def gae(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    mask: npt.ArrayLike,
    gamma: float = 1.0,
    lam: float = 0.95,
    *,
    whitened: bool = False,
) -> TokenAdvantages:
    """A_t = delta_t + gamma lam A_t+1 with delta_t = r_t + gamma V_t+1 - V_t, and return_t = A_t + V_t.

    Behind a completion's last token V and A are 0: a completion cut off at its limit counts as ended. Tokens that the
    mask leaves out, at the end or in between (a tool's output), are passed over as if they were not there.

    Args:
        rewards: shape (rollouts,), paid at the last token that the mask keeps, NaN takes the rollout out; or shape
            (rollouts, tokens), paid token by token.
        values: shape (rollouts, tokens), the value before each token.
        mask: shape (rollouts, tokens), true at the tokens of the completion.
        gamma: discount per token, from 0 to 1.
        lam: from 0 (one step: low variance) to 1 (the whole return: no bias).
        whitened: make mean 0 and std 1 (ddof 1, + 1e-8) over all tokens in the loss; equal advantages become 0.

    Raises:
        ValueError: the shapes differ, gamma or lam lies outside [0, 1], or a value or token reward in the loss is not
            finite, or a reward is infinite.
    """
    keep, value = np.asarray(mask, dtype=bool), np.asarray(values, dtype=np.float64)
    reward = np.asarray(rewards, dtype=np.float64)
    if value.ndim != 2 or keep.shape != value.shape or reward.shape not in (value.shape, value.shape[:1]):
        raise ValueError(f"rewards {reward.shape}, values {value.shape} and mask {keep.shape} do not fit")
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise ValueError(f"gamma {gamma} and lam {lam} must lie in [0, 1]")
    if reward.ndim == 1:
        keep = keep & ~np.isnan(reward)[:, None]
        reward = _at_last_token(reward, keep)
    if not (np.isfinite(value[keep]).all() and np.isfinite(reward[keep]).all()):
        raise ValueError("a value or a reward in the loss is not finite")
    rollouts, tokens = value.shape
    advantage = np.zeros_like(value)
    next_value, next_advantage = np.zeros(rollouts), np.zeros(rollouts)
    for token in reversed(range(tokens)):
        here = keep[:, token]
        delta = reward[:, token] + gamma * next_value - value[:, token]
        next_advantage = np.where(here, delta + gamma * lam * next_advantage, next_advantage)
        next_value = np.where(here, value[:, token], next_value)
        advantage[:, token] = np.where(here, next_advantage, 0.0)
    returns = np.where(keep, advantage + value, 0.0)
    if whitened:
        advantage = np.where(keep, whiten(advantage, keep, _WHITEN_EPSILON, ddof=1), 0.0)
    return TokenAdvantages(advantage, returns, keep)


def _at_last_token(reward: Floats, keep: Bools) -> Floats:
    """Each rollout's reward at its last kept token, 0 elsewhere; shape (rollouts, tokens)."""
    spread = np.zeros(keep.shape)
    rows = np.flatnonzero(keep.any(axis=1))
    last = keep.shape[1] - 1 - keep[rows, ::-1].argmax(axis=1)
    spread[rows, last] = reward[rows]
    return spread
