"""One optimiser step at an explicit place (epoch, minibatch), and the passes without gradient that come before."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grpo_core.diagnostics.gradients import gradient_norms
from grpo_core.policy.batching import Microbatch, TrainingRollout, microbatches, minibatches
from grpo_core.policy.config import NonFiniteUpdate, UpdateConfig
from grpo_core.policy.logprobs import LogprobForm, Logprobs, completion_logprobs
from grpo_core.policy.losses import clipped_surrogate_sums
from grpo_core.policy.optimizer import TrainerState, learning_rate_at, trainable_parameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Forward:
    """How every forward pass of an update is made."""

    form: LogprobForm
    temperature: float
    autocast_dtype: torch.dtype | None

    def __call__(self, model: "PreTrainedModel", batch: Microbatch, want_entropy: bool) -> Logprobs:
        """Flat logprobs of a micro-batch; under autocast where a dtype is set."""
        enabled = self.autocast_dtype is not None
        with torch.autocast(model.device.type, dtype=self.autocast_dtype, enabled=enabled):
            return completion_logprobs(model, batch.groups, self.temperature, want_entropy, form=self.form)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Place and content of one optimiser step; both count from 0."""

    epoch: int
    minibatch: int
    batches: list[Microbatch]

    @property
    def tokens(self) -> int:
        """Completion tokens of the whole step: the denominator of its loss."""
        return sum(batch.tokens for batch in self.batches)


@dataclass(frozen=True, slots=True)
class StepSums:
    """What one step saw, as sums over its tokens (``ratio_max`` is a maximum)."""

    tokens: int
    loss: float
    policy_loss: float
    kl: float
    clipped_low: float
    clipped_high: float
    entropy: float
    ratio: float
    ratio_max: float
    drift: float  # |logprob - old logprob|
    grad_norm: float  # of the step's mean loss, before clipping
    grad_norms: dict[str, float]  # the same by part of the model (diagnostics.gradients)
    learning_rate: float


def plan_steps(
    rollouts: Sequence[TrainingRollout], config: UpdateConfig, form: LogprobForm, *, seed: int, round_number: int
) -> list[PlannedStep]:
    """Every optimiser step of a round in order; a pure function, so that a step can be named and found again."""
    return [
        PlannedStep(epoch, number, microbatches(part, config.tokens_per_microbatch, row_crossover(form)))
        for epoch in range(config.epochs)
        for number, part in enumerate(
            minibatches(rollouts, config.minibatches, seed=seed, round_number=round_number, epoch=epoch)
        )
    ]


def row_crossover(form: LogprobForm) -> float | None:
    """What ``microbatches`` needs to know of a form."""
    return form.crossover if form.shared_prefix else None


def record_logprobs(
    model: "PreTrainedModel", batches: Sequence[Microbatch], forward: Forward, tick: Callable[[], None]
) -> Iterator[tuple[TrainingRollout, npt.NDArray[np.float32]]]:
    """Each rollout with its logprobs under a model, without gradient; ``tick`` is called after each micro-batch."""
    for batch in batches:
        with torch.no_grad():
            flat = forward(model, batch, want_entropy=False).logprobs.cpu().numpy()
        cuts = np.cumsum([len(rollout.completion_ids) for rollout in batch.rollouts])[:-1]
        yield from zip(batch.rollouts, np.split(flat, cuts), strict=True)
        tick()


def run_step(
    model: "PreTrainedModel",
    optimizer: torch.optim.AdamW,
    state: TrainerState,
    step: PlannedStep,
    config: UpdateConfig,
    forward: Forward,
    tick: Callable[[], None],
) -> StepSums:
    """Accumulate the gradient of the step's mean loss per token over its micro-batches, clip it, step.

    Raises:
        NonFiniteUpdate: before parameters or state are changed.
    """
    parameters = trainable_parameters(model)
    optimizer.zero_grad(set_to_none=True)
    totals = np.zeros(8, dtype=np.float64)
    ratio_max = 0.0
    for batch in step.batches:
        found = forward(model, batch, want_entropy=True)
        assert found.entropy is not None
        old, reference, advantages = _flat(batch, config.kl_coef > 0, model.device)
        sums = clipped_surrogate_sums(
            found.logprobs,
            old,
            reference,
            advantages,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            kl_coef=config.kl_coef,
        )
        clipped = (sums.clipped_low, sums.clipped_high)
        seen = (sums.loss.detach(), sums.policy_loss, sums.kl, *clipped, found.entropy.sum(), sums.ratio, sums.drift)
        *values, largest = torch.stack([value.float() for value in (*seen, sums.ratio_max)]).tolist()
        _require_finite(values[0], "loss", state, step)
        totals += values
        ratio_max = max(ratio_max, largest)
        (sums.loss / step.tokens).backward()  # type: ignore[no-untyped-call]
        tick()
    norms = gradient_norms(parameters)
    norm = float(torch.nn.utils.clip_grad_norm_(list(parameters.values()), config.max_grad_norm))
    _require_finite(norm, "gradient norm", state, step)
    rate = learning_rate_at(state.step, config)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state.step += 1
    loss, policy_loss, kl, low, high, entropy, ratio, drift = totals.tolist()
    return StepSums(
        tokens=step.tokens,
        loss=loss,
        policy_loss=policy_loss,
        kl=kl,
        clipped_low=low,
        clipped_high=high,
        entropy=entropy,
        ratio=ratio,
        ratio_max=ratio_max,
        drift=drift,
        grad_norm=norm,
        grad_norms=norms,
        learning_rate=rate,
    )


def _flat(batch: Microbatch, with_reference: bool, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor]:
    old = np.concatenate([rollout.old_logprobs for rollout in batch.rollouts])
    lengths = [len(rollout.completion_ids) for rollout in batch.rollouts]
    advantages = np.repeat([rollout.advantage for rollout in batch.rollouts], lengths).astype(np.float32)
    reference = None
    if with_reference:
        recorded = [rollout.ref_logprobs for rollout in batch.rollouts if rollout.ref_logprobs is not None]
        reference = torch.from_numpy(np.concatenate(recorded)).to(device)
    return torch.from_numpy(old).to(device), reference, torch.from_numpy(advantages).to(device)


def _require_finite(value: float, what: str, state: TrainerState, step: PlannedStep) -> None:
    if not math.isfinite(value):
        raise NonFiniteUpdate(
            f"The {what} of optimiser step {state.step + 1} (epoch {step.epoch + 1}, minibatch {step.minibatch + 1} of "
            f"its round) is {value}, so the step was not taken; look at the round's rollouts for logprobs that are not "
            f"finite, at the last rounds' grad_norm and sampler_logprob_drift, and lower update.learning_rate."
        )
