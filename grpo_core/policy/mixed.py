"""alpha * GRPO + (1 - alpha) * PPO in one forward pass: two sets of advantages behind the same ratios, a value loss.

Both terms are means over rollouts of their own. GRPO's are those of groups that are not dead; PPO's are all that have a
reward, for a value can be learned from a group whose rewards are all equal.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_core.advantages.gae import gae
from grpo_core.policy.batching import Microbatch, TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.kl import token_penalties
from grpo_core.policy.losses import LossInputs, LossSums
from grpo_core.policy.segments import Segments
from grpo_core.policy.value import ValueState, build_value_optimizer, value_loss_sum


@dataclass(frozen=True, slots=True)
class ValueMetrics:
    """How good the values were with which the round began, over its tokens."""

    explained_variance: float | None  # 1 - var(return - value) / var(return); None where the returns don't vary
    value_mean: float
    return_mean: float


def set_targets(rollouts: Sequence[TrainingRollout], config: UpdateConfig) -> ValueMetrics:
    """Fill in advantages and returns per token from rewards and recorded values; whitened over all of them together.

    With ``kl_in: reward`` each token is charged kl_coef times its KL at the old logprobs, as in PPO for language models
    (Ziegler et al. 2019, arXiv 1909.08593).

    Raises:
        ValueError: a rollout has no reward or no values.
    """
    known = [(r.values, r.reward) for r in rollouts if r.values is not None and r.reward is not None]
    if len(known) < len(rollouts):
        raise ValueError("a rollout of PPO's term has no reward or no recorded values")
    lengths = np.array([len(values) for values, _ in known])
    mask = np.arange(lengths.max()) < lengths[:, None]
    values, rewards = np.zeros(mask.shape), np.zeros(mask.shape)
    values[mask] = np.concatenate([values for values, _ in known])
    rewards[np.arange(len(known)), lengths - 1] = [reward for _, reward in known]
    if config.kl_in == "reward" and config.kl_coef > 0:
        rewards[mask] -= config.kl_coef * np.concatenate([token_penalties(r, config.kl_estimator) for r in rollouts])
    ppo = config.ppo
    found = gae(rewards, values, mask, ppo.gamma, ppo.gae_lambda, whitened=ppo.whiten)
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


@dataclass(frozen=True, slots=True)
class Divisors:
    """What sums over the tokens of a whole optimiser step are divided by."""

    loss: int  # of loss and policy_loss, by the aggregation
    tokens: int


def mixed_sums(
    grpo: LossSums | None,
    ppo: LossSums,
    value_loss: Tensor,
    *,
    alpha: float,
    value_coef: float,
    whole: Divisors,
    live: Divisors,
) -> LossSums:
    """Sums that, divided as ``whole`` says, are alpha * (mean of grpo) + (1 - alpha) * (mean of ppo + value loss).

    PPO's part is equation 9 of arXiv 1707.06347; the value loss is a mean per token whatever the aggregation. The KL in
    the loss stands in both terms, so its weight is kl_coef whatever alpha is. Shares of clipped tokens are mixed alike;
    what does not depend on advantages is over all tokens.

    Args:
        grpo: over live groups; None where the micro-batch has none.
        ppo: over all rollouts of the micro-batch.
        whole: of the optimiser step.
        live: of its live groups alone.
    """

    def mixed(name: str, other: Tensor, divisor: int, divisor_live: int) -> Tensor:
        rest = (1 - alpha) * other
        return rest if grpo is None else alpha * divisor / divisor_live * getattr(grpo, name) + rest

    with_value = ppo.loss + value_coef * value_loss * whole.loss / whole.tokens
    clipped = ("clipped_low", "clipped_high", "clipped_dual")
    return replace(
        ppo,
        loss=mixed("loss", with_value, whole.loss, live.loss),
        policy_loss=mixed("policy_loss", ppo.policy_loss, whole.loss, live.loss),
        **{name: mixed(name, getattr(ppo, name), whole.tokens, live.tokens) for name in clipped},
    )


def of_sequences(inputs: LossInputs, keep: Sequence[bool]) -> LossInputs | None:
    """The inputs of some of the sequences, (S,); None when it is none of them."""
    if all(keep):
        return inputs
    if not any(keep):
        return None
    kept = torch.tensor(keep, device=inputs.logprobs.device)
    tokens = kept[inputs.segments.index]
    flat = {field.name: getattr(inputs, field.name) for field in fields(inputs) if field.name != "segments"}
    parts: dict[str, Any] = {name: None if values is None else values[tokens] for name, values in flat.items()}
    return LossInputs(segments=Segments.of(inputs.segments.lengths[kept]), **parts)


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
        objective: Callable[[LossInputs], LossSums],
        inputs: LossInputs,
        hidden: Tensor,
        batch: Microbatch,
        whole: Divisors,
        live: Divisors,
    ) -> tuple[LossSums, Tensor]:
        """The mixed sums of a micro-batch, and the sum of its value loss without a gradient.

        Args:
            objective: the policy loss.
            inputs: with GRPO's advantages.
            hidden: (T, H), as ``completion_logprobs`` returns them.
            whole: as ``mixed_sums`` takes them, and so is ``live``.
        """
        old, advantages, returns = (part.to(hidden.device) for part in _targets(batch))
        values = self.state.head(hidden if self._config.trunk_gradient else hidden.detach())
        value_loss = value_loss_sum(values, old, returns, self._config.value_clip)
        kept = of_sequences(inputs, [rollout.in_loss for rollout in batch.rollouts]) if self.alpha > 0 else None
        mixed = mixed_sums(
            None if kept is None else objective(kept),
            objective(replace(inputs, advantages=advantages)),
            value_loss,
            alpha=self.alpha,
            value_coef=self._config.value_coef,
            whole=whole,
            live=live,
        )
        return mixed, value_loss.detach()

    def clipped(self, held: Callable[[LossInputs], Tensor], inputs: LossInputs, batch: Microbatch) -> Tensor:
        """(T,) bool: tokens that either term of a micro-batch holds at a bound.

        Args:
            held: says which tokens one term holds.
            inputs: with GRPO's advantages, which are 0 outside of its term.
        """
        _, advantages, _ = (part.to(inputs.logprobs.device) for part in _targets(batch))
        found = held(replace(inputs, advantages=advantages))
        return found | held(inputs) if self.alpha > 0 else found

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
