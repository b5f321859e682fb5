"""What a round's update says of itself in numbers, from the sums of its optimiser steps."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import UpdateConfig

if TYPE_CHECKING:
    from grpo_core.policy.step import StepSums


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """Means over the completion tokens of all steps of a round, unless said otherwise; None: nothing was measured.

    ``loss`` and ``policy_loss`` are as aggregated. An effective sample size is (sum w)^2 / (n sum w^2), a share of 1.
    """

    steps: int  # optimiser steps taken; 0 when no rollout was in the loss
    tokens: int  # completion tokens in the loss, summed over the steps
    loss: float | None = None
    policy_loss: float | None = None
    kl: float | None = None  # k3 to the reference, nats, whatever estimator is trained on; None without one
    kl_old: float | None = None  # k3 from the policy that generated, nats
    clip_ratio: float | None = None  # share of tokens held at the lower or upper bound
    clip_ratio_low: float | None = None
    clip_ratio_high: float | None = None
    clip_ratio_dual: float | None = None  # share held at dual_clip; None without it
    entropy: float | None = None  # of the policy in training, nats
    grad_norm: float | None = None  # mean over steps, before clipping; the same by part of the model:
    grad_norm_embeddings: float | None = None
    grad_norm_early: float | None = None
    grad_norm_middle: float | None = None
    grad_norm_late: float | None = None
    grad_norm_head: float | None = None
    learning_rate: float | None = None  # of the last step
    ratio_mean: float | None = None
    ratio_max: float | None = None  # the largest of any token
    ratio_ess: float | None = None  # effective sample size
    sampler_logprob_drift: float | None = None  # |trainer - sampler| before any update, nats
    sampler_logprob_drift_max: float | None = None  # of any token; None with the sampler's logprobs
    sampler_kl: float | None = None  # k3 of KL(sampler || trainer) before any update, nats
    importance_mean: float | None = None  # trainer over sampler, before truncation; None with the sampler's logprobs
    importance_max: float | None = None
    importance_ess: float | None = None
    importance_outside: float | None = None  # share of tokens truncated or masked; None without a correction
    entropy_masked: float | None = None  # share of tokens below the entropy threshold; None without one
    direction: float | None = None  # change of mean logprobs along the advantages' signs (diagnostics.direction), nats
    direction_weighted: float | None = None
    direction_good: float | None = None
    direction_bad: float | None = None
    # None in a round without a PPO part:
    alpha: float | None = None  # GRPO's weight in loss, policy_loss and clip ratios
    value_loss: float | None = None
    explained_variance: float | None = None  # of the returns by the values before the update; at most 1
    value_mean: float | None = None  # before the update
    return_mean: float | None = None

    def as_dict(self) -> dict[str, float]:
        """The metrics that were measured, by name."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}


def sampler_distance(rollouts: Sequence[TrainingRollout]) -> tuple[float, float, float | None]:
    """Mean |trainer - sampler|, k3 of KL(sampler || trainer), and the largest |trainer - sampler|, over tokens."""
    differences = [r.old_logprobs - r.sampler_logprobs for r in rollouts if r.sampler_logprobs is not None]
    difference = np.concatenate(differences)
    drift = float(np.abs(difference).mean(dtype=np.float64))
    kl = float((np.expm1(difference, dtype=np.float64) - difference).mean())
    return drift, kl, float(np.abs(difference).max())


def first_distance(first: "StepSums") -> tuple[float, float, float | None]:
    """The same from the first step, whose ratios are to the sampler's own logprobs; it knows no largest."""
    return first.drift / first.tokens, first.kl_old / first.tokens, None


def summary(
    sums: "Sequence[StepSums]",
    config: UpdateConfig,
    drift: float,
    sampler_kl: float,
    drift_max: float | None,
    direction: Mapping[str, float],
) -> UpdateMetrics:
    """A round's metrics from its steps, and from what was measured before the first and after the last."""
    tokens = sum(step.tokens for step in sums)
    denominators = sum(step.denominator for step in sums)

    def mean(name: str) -> float:
        return float(sum(getattr(step, name) for step in sums) / tokens)

    def effective(name: str) -> float:
        squares = mean(f"{name}_squared")
        return mean(name) ** 2 / squares if squares > 0 else 0.0

    low, high = mean("clipped_low"), mean("clipped_high")
    weighed = config.old_logprobs == "trainer"
    return UpdateMetrics(
        steps=len(sums),
        tokens=tokens,
        loss=sum(step.loss for step in sums) / denominators,
        policy_loss=sum(step.policy_loss for step in sums) / denominators,
        kl=mean("kl") if config.kl_coef > 0 else None,
        kl_old=mean("kl_old"),
        clip_ratio=low + high,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_dual=None if config.dual_clip is None else mean("clipped_dual"),
        entropy=mean("entropy"),
        grad_norm=sum(step.grad_norm for step in sums) / len(sums),
        learning_rate=sums[-1].learning_rate,
        ratio_mean=mean("ratio"),
        ratio_max=max(step.ratio_max for step in sums),
        ratio_ess=effective("ratio"),
        sampler_logprob_drift=drift,
        sampler_logprob_drift_max=drift_max,
        sampler_kl=sampler_kl,
        importance_mean=mean("importance") if weighed else None,
        importance_max=max(step.importance_max for step in sums) if weighed else None,
        importance_ess=effective("importance") if weighed else None,
        importance_outside=None if config.importance.correction == "none" else mean("importance_outside"),
        entropy_masked=mean("unselected") if config.top_entropy < 1 else None,
        **{f"grad_norm_{part}": sum(step.grad_norms[part] for step in sums) / len(sums) for part in sums[0].grad_norms},
        **direction,
    )
