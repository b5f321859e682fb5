"""Estimates of a KL divergence from samples (Schulman 2020, "Approximating KL divergence"), and the KL as a reward."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import KlEstimator


def k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """logprob - reference, per token: unbiased, of high variance, of either sign.

    As a term of a loss its gradient has mean zero on the policy's own samples; it belongs into the reward, or under
    the importance ratio of ``kl_bias_correction``.
    """
    return logprobs - reference_logprobs


def k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """(logprob - reference)^2 / 2, per token: biased in value, but its gradient is that of the KL on own samples."""
    return (logprobs - reference_logprobs).square() / 2


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """An estimate per token of KL(policy || reference) from the policy's own samples; nonnegative, same shape.

    k3 = exp(d) - d - 1 with d = reference - logprob: unbiased, of lower variance than -d.
    """
    difference = reference_logprobs - logprobs
    return torch.expm1(difference) - difference


ESTIMATORS: dict[KlEstimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def reward_penalties(rollouts: Sequence[TrainingRollout], estimator: KlEstimator) -> list[float]:
    """The KL of each rollout as a loss of reward: summed over its tokens, less the mean of its group; nats.

    A reward r - beta * K minus its group's mean is (r - mean r) - beta * (K - mean K), so what is returned, times
    beta, comes off the advantage. K is taken at the old logprobs, as in PPO for language models (arXiv 1909.08593) and
    REINFORCE++ (arXiv 2501.03262); it holds no gradient.

    Args:
        rollouts: with reference logprobs; those of one prompt_id are a group.
    """
    sums: list[float] = []
    groups: dict[str, list[float]] = {}
    for rollout in rollouts:
        assert rollout.ref_logprobs is not None
        old, reference = (torch.from_numpy(x).double() for x in (rollout.old_logprobs, rollout.ref_logprobs))
        sums.append(float(ESTIMATORS[estimator](old, reference).sum()))
        groups.setdefault(rollout.prompt_id, []).append(sums[-1])
    means = {prompt_id: float(np.mean(found)) for prompt_id, found in groups.items()}
    return [found - means[rollout.prompt_id] for found, rollout in zip(sums, rollouts, strict=True)]
