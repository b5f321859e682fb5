"""alpha * GRPO + (1 - alpha) * PPO in one forward pass: two sets of advantages behind the same ratios, a value loss.

Both terms are means over tokens of their own. GRPO's are those of groups that are not dead; PPO's are all that have a
reward, for a value can be learned from a group whose rewards are all equal.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grpo_core.advantages.gae import gae
from grpo_core.policy.batching import Microbatch, TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.losses import LossSums
from grpo_core.policy.ppo_config import PPOConfig
from grpo_core.policy.value import ValueHead, ValueState, build_value_optimizer, value_loss_sum

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from grpo_core.policy.step import Forward

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ValueMetrics:
    """How good the values were with which the round began, over its tokens."""

    explained_variance: float | None  # 1 - var(return - value) / var(return); None where the returns don't vary
    value_mean: float
    return_mean: float


def record_values(
    model: "PreTrainedModel",
    head: ValueHead,
    batches: Sequence[Microbatch],
    forward: "Forward",
    tick: Callable[[], None],
) -> Iterator[tuple[TrainingRollout, Floats, Floats]]:
    """Each rollout with its logprobs and its values from one pass without gradient; ``tick`` after each micro-batch."""
    for batch in batches:
        with torch.no_grad():
            found = forward(model, batch, want_entropy=False, want_hidden=True)
            assert found.hidden is not None
            values = head(found.hidden)
        cuts = np.cumsum([len(rollout.completion_ids) for rollout in batch.rollouts])[:-1]
        pieces = [np.split(flat.cpu().numpy(), cuts) for flat in (found.logprobs, values)]
        yield from zip(batch.rollouts, *pieces, strict=True)
        tick()


def set_targets(rollouts: Sequence[TrainingRollout], config: PPOConfig) -> ValueMetrics:
    """Fill in advantages and returns per token from rewards and recorded values; whitened over all of them together.

    Raises:
        ValueError: a rollout has no reward or no values.
    """
    known = [(r.values, r.reward) for r in rollouts if r.values is not None and r.reward is not None]
    if len(known) < len(rollouts):
        raise ValueError("a rollout of PPO's term has no reward or no recorded values")
    lengths = np.array([len(values) for values, _ in known])
    mask = np.arange(lengths.max()) < lengths[:, None]
    values = np.zeros(mask.shape)
    values[mask] = np.concatenate([values for values, _ in known])
    found = gae([reward for _, reward in known], values, mask, config.gamma, config.gae_lambda, whitened=config.whiten)
    for row, (rollout, length) in enumerate(zip(rollouts, lengths, strict=True)):
        rollout.token_advantages = found.advantage[row, :length].astype(np.float32)
        rollout.returns = found.returns[row, :length].astype(np.float32)
    returns, predicted = found.returns[mask], values[mask]
    varies = returns.min() < returns.max()
    return ValueMetrics(
        explained_variance=float(1 - (returns - predicted).var() / returns.var()) if varies else None,
        value_mean=float(predicted.mean()),
        return_mean=float(returns.mean()),
    )


def mixed_sums(
    grpo: LossSums,
    ppo: LossSums,
    value_loss: Tensor,
    *,
    alpha: float,
    value_coef: float,
    tokens: int,
    grpo_tokens: int,
) -> LossSums:
    """Sums that, divided by ``tokens``, are alpha * (mean of grpo) + (1 - alpha) * (mean of ppo + value_coef * value).

    PPO's part is equation 9 of arXiv 1707.06347 without an entropy bonus. The KL to the reference stands in both terms,
    so its weight is kl_coef whatever alpha is; shares of clipped tokens are mixed alike.

    Args:
        grpo: over the tokens of live groups.
        ppo: over all tokens of the micro-batch.
        tokens: of the whole optimiser step; ``grpo_tokens`` those of them in live groups. With none, GRPO's term is 0.
    """
    weight = alpha * tokens / grpo_tokens if grpo_tokens else 0.0

    def mixed(one: Tensor, other: Tensor) -> Tensor:
        return weight * one + (1 - alpha) * other

    return replace(
        ppo,
        loss=mixed(grpo.loss, ppo.loss + value_coef * value_loss),
        policy_loss=mixed(grpo.policy_loss, ppo.policy_loss),
        kl=mixed(grpo.kl, ppo.kl),
        clipped_low=mixed(grpo.clipped_low, ppo.clipped_low),
        clipped_high=mixed(grpo.clipped_high, ppo.clipped_high),
    )


class Mixture:
    """The PPO part of one round's update: GRPO's weight, the value head and the head's optimiser."""

    def __init__(self, alpha: float, state: ValueState, config: UpdateConfig) -> None:
        self.alpha = alpha
        self.state = state
        self._config = config.ppo
        self._optimizer = build_value_optimizer(state, config)
        self._optimizer.zero_grad(set_to_none=True)

    def sums(
        self,
        surrogate: Callable[..., LossSums],
        advantages: Tensor,
        hidden: Tensor,
        batch: Microbatch,
        tokens: int,
        grpo_tokens: int,
    ) -> tuple[LossSums, Tensor]:
        """The mixed sums of a micro-batch, and the sum of its value loss without a gradient.

        Args:
            surrogate: the policy loss as a function of (T,) advantages and a (T,) ``mask``.
            advantages: GRPO's.
            hidden: (T, H), as ``completion_logprobs`` returns them.
            tokens: of the whole optimiser step, as ``mixed_sums`` takes them.
        """
        lengths = torch.tensor([len(rollout.completion_ids) for rollout in batch.rollouts])
        live = torch.tensor([rollout.in_loss for rollout in batch.rollouts]).repeat_interleave(lengths)
        old, token_advantages, returns = (part.to(hidden.device) for part in _targets(batch))
        values = self.state.head(hidden if self._config.trunk_gradient else hidden.detach())
        value_loss = value_loss_sum(values, old, returns, self._config.value_clip)
        mixed = mixed_sums(
            surrogate(advantages, mask=live.to(hidden.device)),
            surrogate(token_advantages),
            value_loss,
            alpha=self.alpha,
            value_coef=self._config.value_coef,
            tokens=tokens,
            grpo_tokens=grpo_tokens,
        )
        return mixed, value_loss.detach()

    def clip_gradient(self, max_norm: float) -> float:
        """Scale the head's gradient down to a norm; returns what it was."""
        return float(torch.nn.utils.clip_grad_norm_(self.state.head.parameters(), max_norm))

    def step(self, warmup: float) -> None:
        """One step of the head at so much of its learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.value_learning_rate * warmup
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.state.step += 1


def _targets(batch: Microbatch) -> Iterator[Tensor]:
    for name in ("values", "token_advantages", "returns"):
        yield torch.from_numpy(np.concatenate([getattr(rollout, name) for rollout in batch.rollouts]))
