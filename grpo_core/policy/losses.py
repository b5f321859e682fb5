"""The objective as pure tensor arithmetic: ratio level x clipping x aggregation, as sums over tokens, never means.

The caller divides by ``denominator`` of the whole optimiser step, so that the result does not depend on how the step is
cut into micro-batches. The named losses are choices among these; docs/algorithms.md lists them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.importance import importance_ratios, importance_weights
from grpo_core.policy.kl import ESTIMATORS, k3
from grpo_core.policy.segments import Segments


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Flat over the tokens of whole sequences, each (T,); gradients flow through ``logprobs`` and ``entropy`` alone."""

    segments: Segments
    logprobs: Tensor  # of the policy in training, nats
    old_logprobs: Tensor  # of the policy that generated
    advantages: Tensor
    entropy: Tensor  # of the policy in training; with a gradient where entropy_coef is not 0
    reference_logprobs: Tensor | None = None  # None leaves the KL out
    sampler_logprobs: Tensor | None = None  # the sampler's own, where old_logprobs are the trainer's
    selected: Tensor | None = None  # bool; False leaves a token out of the policy loss. None: all count


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over tokens, each a scalar tensor; only ``loss`` carries a gradient.

    ``loss`` and ``policy_loss`` are to be divided by ``denominator``, the others by tokens.
    """

    loss: Tensor  # policy_loss + kl_coef * KL - entropy_coef * entropy, each aggregated alike
    policy_loss: Tensor
    kl: Tensor  # k3 to the reference, whatever estimator is trained on; 0 without one
    kl_old: Tensor  # k3 of KL(old || policy)
    entropy: Tensor
    clipped_low: Tensor  # held at 1 - clip_low: tokens with A < 0; with cispo of either sign
    clipped_high: Tensor  # held at 1 + clip_high: tokens with A > 0; with cispo of either sign
    clipped_dual: Tensor  # tokens with A < 0 held at dual_clip
    ratio: Tensor
    ratio_squared: Tensor
    ratio_max: Tensor  # the largest ratio, not a sum
    drift: Tensor  # |logprob - old logprob|
    importance: Tensor  # old over sampler, before truncation or masking; these four are 0 without sampler logprobs
    importance_squared: Tensor
    importance_max: Tensor  # the largest, not a sum
    importance_outside: Tensor  # tokens truncated or masked
    unselected: Tensor  # tokens left out by ``selected``


MAXIMA = ("ratio_max", "importance_max")
"""Fields of ``LossSums`` to be combined by the maximum."""


def denominator(config: UpdateConfig, *, tokens: int, sequences: int, max_new_tokens: int | None) -> int:
    """What the sum of a whole optimiser step's losses is divided by.

    - ``token``: its tokens, so that a token weighs the same in a short completion as in a long one (DAPO, arXiv
      2503.14476, section 3.3; BNPO where the step is the batch).
    - ``sequence``: its sequences; ``loss_sums`` has divided by each one's length (GRPO, arXiv 2402.03300).
    - ``constant``: its sequences times a length that is the same for all (Dr. GRPO, arXiv 2503.20783).

    Raises:
        ValueError: aggregation ``constant`` with neither ``constant_length`` nor ``max_new_tokens``.
    """
    if config.aggregation == "token":
        return tokens
    if config.aggregation == "sequence":
        return sequences
    length = config.constant_length or max_new_tokens
    if length is None:
        raise ValueError("aggregation constant needs a length; give max_new_tokens or set update.constant_length")
    return sequences * length


def loss_sums(inputs: LossInputs, config: UpdateConfig, clip_low: float, clip_high: float) -> LossSums:
    """The loss of some whole sequences of an optimiser step, with what it says about them.

    Args:
        clip_low, clip_high: at this place of the run (``ClipSchedule.widths``).
    """
    segments, advantages = inputs.segments, inputs.advantages
    token_log_ratio = inputs.logprobs - inputs.old_logprobs
    ratio = _log_ratio(inputs, token_log_ratio, config.ratio_level).exp()
    terms = -_gain(ratio, inputs.logprobs, advantages, config, clip_low, clip_high)
    if inputs.sampler_logprobs is not None:
        importance = importance_ratios(inputs.old_logprobs, inputs.sampler_logprobs, segments, config.importance.level)
        weights = importance_weights(importance, config.importance)
        terms = terms * weights
    else:
        importance = weights = torch.zeros_like(advantages)
    if inputs.selected is not None:
        terms = torch.where(inputs.selected, terms, 0.0)
    policy_loss = _aggregated(terms, segments, config)
    loss = policy_loss
    kl = torch.zeros_like(policy_loss)
    if inputs.reference_logprobs is not None:
        if config.kl_in == "loss":
            penalty = ESTIMATORS[config.kl_estimator](inputs.logprobs, inputs.reference_logprobs)
            if config.kl_bias_correction:
                penalty = penalty * token_log_ratio.exp()
            loss = loss + config.kl_coef * _aggregated(penalty, segments, config)
        kl = k3(inputs.logprobs.detach(), inputs.reference_logprobs).sum()
    if config.entropy_coef > 0:
        loss = loss - config.entropy_coef * _aggregated(inputs.entropy, segments, config)
    held = ratio.detach()
    low, high, dual = _held(held, advantages, config, clip_low, clip_high)
    outside = (importance != weights) & (config.importance.correction != "none")
    return LossSums(
        loss=loss,
        policy_loss=policy_loss.detach(),
        kl=kl,
        kl_old=k3(inputs.old_logprobs, inputs.logprobs.detach()).sum(),
        entropy=inputs.entropy.detach().sum(),
        clipped_low=low.sum(),
        clipped_high=high.sum(),
        clipped_dual=dual.sum(),
        ratio=held.sum(),
        ratio_squared=held.square().sum(),
        ratio_max=held.max(),
        drift=token_log_ratio.detach().abs().sum(),
        importance=importance.sum(),
        importance_squared=importance.square().sum(),
        importance_max=importance.max(),
        importance_outside=outside.sum(),
        unselected=torch.zeros_like(policy_loss) if inputs.selected is None else (~inputs.selected).sum(),
    )


def clipped_tokens(inputs: LossInputs, config: UpdateConfig, clip_low: float, clip_high: float) -> Tensor:
    """(T,) bool: the tokens that ``LossSums`` counts as held at the lower, the upper or the dual bound."""
    ratio = _log_ratio(inputs, inputs.logprobs - inputs.old_logprobs, config.ratio_level).detach().exp()
    low, high, dual = _held(ratio, inputs.advantages, config, clip_low, clip_high)
    return low | high | dual


def _log_ratio(inputs: LossInputs, token_log_ratio: Tensor, level: str) -> Tensor:
    """Log of policy over old policy, (T,).

    At the sequence level the mean over the sequence, the log of GSPO's s_i (arXiv 2507.18071); sequence_token has that
    value and each token's own gradient (GSPO-token there), so that advantages may differ by token.
    """
    if level == "token":
        return token_log_ratio
    means = inputs.segments.mean(token_log_ratio)
    if level == "sequence":
        return inputs.segments.spread(means)
    return inputs.segments.spread(means.detach()) + (inputs.logprobs - inputs.logprobs.detach())


def _gain(
    ratio: Tensor, logprobs: Tensor, advantages: Tensor, config: UpdateConfig, clip_low: float, clip_high: float
) -> Tensor:
    """What is to be made large, per token.

    - ``ppo``: min(r A, clip(r, 1 - low, 1 + high) A) (arXiv 1707.06347, equation 7; separate bounds: DAPO's
      clip-higher, arXiv 2503.14476); with a dual clip no less than c A where A < 0 (arXiv 1912.09729).
    - ``cispo``: stop_gradient(clip(r)) A logprob (MiniMax-M1, arXiv 2506.13585).
    - ``sapo``: 4 / tau * sigmoid(tau (r - 1)) A, with a tau for each sign of A (arXiv 2511.20347); its gradient at
      r = 1 is that of r A.
    - ``none``: r A.
    """
    if config.clip == "none":
        return ratio * advantages
    if config.clip == "cispo":
        return ratio.detach().clamp(1 - clip_low, 1 + clip_high) * advantages * logprobs
    if config.clip == "sapo":
        rewarded, punished = config.sapo_temperatures
        temperatures = torch.where(advantages > 0, advantages.new_tensor(rewarded), advantages.new_tensor(punished))
        return torch.sigmoid(temperatures * (ratio - 1)) * 4 / temperatures * advantages
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if config.dual_clip is None:
        return gain
    return torch.where(advantages < 0, torch.maximum(gain, config.dual_clip * advantages), gain)


def _held(
    ratio: Tensor, advantages: Tensor, config: UpdateConfig, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Which tokens are held at the lower, the upper and the dual bound."""
    low, high, punished = ratio < 1 - clip_low, ratio > 1 + clip_high, advantages < 0
    nowhere = torch.zeros_like(punished)
    if config.clip == "cispo":
        return low & (advantages != 0), high & (advantages != 0), nowhere
    if config.clip != "ppo":
        return nowhere, nowhere, nowhere
    dual = nowhere if config.dual_clip is None else (ratio > config.dual_clip) & punished
    return low & punished, high & (advantages > 0), dual


def _aggregated(terms: Tensor, segments: Segments, config: UpdateConfig) -> Tensor:
    return segments.mean(terms).sum() if config.aggregation == "sequence" else terms.sum()
