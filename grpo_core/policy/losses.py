"""The objective of GRPO as pure tensor arithmetic: sums over tokens, never means.

The caller divides by the number of tokens of the whole optimiser step, so the result does not depend on how the step is
cut into micro-batches, and a token weighs the same in a short completion as in a long one (DAPO, arXiv 2503.14476,
section 3.3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the unmasked tokens, each a scalar tensor; only ``loss`` carries a gradient."""

    loss: Tensor  # policy_loss + kl_coef * kl
    policy_loss: Tensor
    kl: Tensor  # k3; 0 without a reference
    clipped_low: Tensor  # tokens with A < 0 held at 1 - clip_low
    clipped_high: Tensor  # tokens with A > 0 held at 1 + clip_high
    ratio: Tensor
    ratio_max: Tensor  # the largest ratio, not a sum
    drift: Tensor  # |logprob - old logprob|
    tokens: Tensor


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """An estimate per token of KL(policy || reference) from the policy's own samples; nonnegative, same shape.

    k3 = exp(d) - d - 1 with d = reference - logprob (Schulman 2020, "Approximating KL divergence"): unbiased on samples
    of the policy, of lower variance than -d.
    """
    difference = reference_logprobs - logprobs
    return torch.expm1(difference) - difference


def clipped_surrogate_sums(
    logprobs: Tensor,
    old_logprobs: Tensor,
    reference_logprobs: Tensor | None,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_coef: float,
    mask: Tensor | None = None,
) -> LossSums:
    """Sum over tokens of -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) + kl_coef * k3.

    The ratio is exp(logprob - old logprob) per token. PPO's clipped surrogate (arXiv 1707.06347, equation 7) with
    GRPO's KL in the loss (arXiv 2402.03300, equation 3) and separate bounds (DAPO's clip-higher, arXiv 2503.14476).

    Args:
        logprobs: of the policy in training, any shape; the gradient flows through it alone.
        old_logprobs: of the policy that generated, same shape.
        reference_logprobs: same shape, or None to leave the KL out.
        advantages: same shape, one value repeated over a completion's tokens.
        mask: bool, same shape; False leaves a token out of every sum, whatever stands there. None: all count.
    """
    keep = torch.ones_like(logprobs, dtype=torch.bool) if mask is None else mask
    log_ratio = torch.where(keep, logprobs - old_logprobs, 0.0)
    advantages = torch.where(keep, advantages, 0.0)
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    policy_loss = -torch.minimum(unclipped, clipped).sum()
    if reference_logprobs is None:
        kl = torch.zeros_like(policy_loss)
    else:
        # Masked before the exponential: an infinity there would reach the gradient as 0 * inf.
        reference = torch.where(keep, reference_logprobs, 0.0)
        kl = k3(torch.where(keep, logprobs, 0.0), reference).sum()
    held = ratio.detach()
    return LossSums(
        loss=policy_loss + kl_coef * kl,
        policy_loss=policy_loss.detach(),
        kl=kl.detach(),
        clipped_low=((held < 1 - clip_low) & (advantages < 0)).sum(),
        clipped_high=((held > 1 + clip_high) & (advantages > 0)).sum(),
        ratio=torch.where(keep, held, 0.0).sum(),
        ratio_max=torch.where(keep, held, 0.0).max(),
        drift=log_ratio.detach().abs().sum(),
        tokens=keep.sum(),
    )
