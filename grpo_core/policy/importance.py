"""Weights that correct for a sampler whose probabilities are not quite the trainer's: TIS, masked IS, IcePop."""

import torch
from torch import Tensor

from grpo_core.policy.config import ImportanceConfig
from grpo_core.policy.segments import Segments


def importance_ratios(old_logprobs: Tensor, sampler_logprobs: Tensor, segments: Segments, level: str) -> Tensor:
    """Trainer's probability over the sampler's, before any update; (T,), without a gradient.

    Args:
        old_logprobs: (T,) of the policy that generated, computed by the trainer.
        sampler_logprobs: (T,) of the same policy and tokens, as the sampler gave them; not of a distribution that
            top-p or top-k cut, whose probabilities are larger throughout.
        level: "token", or "sequence": the product over a sequence, at each of its tokens.
    """
    log_ratio = (old_logprobs - sampler_logprobs).detach()
    if level == "sequence":
        log_ratio = segments.spread(segments.sum(log_ratio))
    return log_ratio.exp()


def importance_weights(ratios: Tensor, config: ImportanceConfig) -> Tensor:
    """What each token's policy loss is multiplied by, same shape.

    - ``truncate``: the ratio held inside [low, high] (truncated importance sampling, Yao et al. 2025, "Your efficient
      RL framework secretly brings you off-policy RL training").
    - ``mask``: the ratio inside [low, high], 0 outside: masked IS at the sequence level, IcePop at the token level
      (arXiv 2510.18855).
    """
    if config.correction == "truncate":
        return ratios.clamp(config.low, config.high)
    if config.correction == "mask":
        return torch.where((ratios >= config.low) & (ratios <= config.high), ratios, 0.0)
    return torch.ones_like(ratios)
