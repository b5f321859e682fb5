"""One optimiser step at an explicit place (epoch, minibatch), and the passes without gradient that come before."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from grpo_core.diagnostics.gradients import gradient_norms
from grpo_core.policy.batching import Microbatch, TrainingRollout, microbatches, minibatches
from grpo_core.policy.config import NonFiniteUpdate, UpdateConfig
from grpo_core.policy.logprobs import LogprobForm, Logprobs, completion_logprobs
from grpo_core.policy.losses import MAXIMA, LossInputs, LossSums, denominator, loss_sums
from grpo_core.policy.optimizer import TrainerState, learning_rate_at, trainable_parameters
from grpo_core.policy.segments import Segments

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Forward:
    """How every forward pass of an update is made."""

    form: LogprobForm
    temperature: float
    autocast_dtype: torch.dtype | None

    def __call__(
        self, model: "PreTrainedModel", batch: Microbatch, want_entropy: bool, entropy_gradient: bool = False
    ) -> Logprobs:
        """Flat logprobs of a micro-batch; under autocast where a dtype is set."""
        enabled = self.autocast_dtype is not None
        with torch.autocast(model.device.type, dtype=self.autocast_dtype, enabled=enabled):
            return completion_logprobs(
                model,
                batch.groups,
                self.temperature,
                want_entropy,
                form=self.form,
                entropy_gradient=entropy_gradient,
            )


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Place and content of one optimiser step; both count from 0."""

    epoch: int
    minibatch: int
    batches: list[Microbatch]

    @property
    def tokens(self) -> int:
        """Completion tokens of the whole step."""
        return sum(batch.tokens for batch in self.batches)

    def denominator(self, config: UpdateConfig, max_new_tokens: int | None) -> int:
        """What the sum of the whole step's losses is divided by."""
        sequences = sum(len(batch.rollouts) for batch in self.batches)
        return denominator(config, tokens=self.tokens, sequences=sequences, max_new_tokens=max_new_tokens)

    def entropy_threshold(self, share: float) -> float:
        """The entropy that this share of the step's tokens reach or exceed (arXiv 2506.01939); nats."""
        rollouts = [rollout for batch in self.batches for rollout in batch.rollouts]
        recorded = [rollout.old_entropy for rollout in rollouts if rollout.old_entropy is not None]
        return float(np.quantile(np.concatenate(recorded), 1 - share))


@dataclass(frozen=True, slots=True)
class StepSums:
    """What one step saw: the fields of ``LossSums`` over all its micro-batches, and what is known of it once."""

    tokens: int
    denominator: int  # of loss and policy_loss
    loss: float
    policy_loss: float
    kl: float
    kl_old: float
    entropy: float
    clipped_low: float
    clipped_high: float
    clipped_dual: float
    ratio: float
    ratio_squared: float
    ratio_max: float
    drift: float
    importance: float
    importance_squared: float
    importance_max: float
    importance_outside: float
    unselected: float
    grad_norm: float  # of the step's loss, before clipping
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
    model: "PreTrainedModel",
    batches: Sequence[Microbatch],
    forward: Forward,
    tick: Callable[[], None],
    want_entropy: bool = False,
) -> Iterator[tuple[TrainingRollout, npt.NDArray[np.float32], npt.NDArray[np.float32] | None]]:
    """Each rollout with its logprobs and, if wanted, entropies under a model, without gradient.

    ``tick`` is called after each micro-batch.
    """
    for batch in batches:
        with torch.no_grad():
            found = forward(model, batch, want_entropy)
        cuts = np.cumsum([len(rollout.completion_ids) for rollout in batch.rollouts])[:-1]
        logprobs = np.split(found.logprobs.cpu().numpy(), cuts)
        entropies = [None] * len(logprobs) if found.entropy is None else np.split(found.entropy.cpu().numpy(), cuts)
        yield from zip(batch.rollouts, logprobs, entropies, strict=True)
        tick()


def run_step(
    model: "PreTrainedModel",
    optimizer: torch.optim.AdamW,
    state: TrainerState,
    step: PlannedStep,
    config: UpdateConfig,
    forward: Forward,
    tick: Callable[[], None],
    *,
    round_number: int,
    max_new_tokens: int | None,
) -> StepSums:
    """Accumulate the gradient of the step's loss over its micro-batches, clip it, step.

    Args:
        round_number: where the schedule of the clip widths stands.
        max_new_tokens: of the sampler; None where the aggregation does not need it.

    Raises:
        NonFiniteUpdate: before parameters or state are changed.
    """
    parameters = trainable_parameters(model)
    optimizer.zero_grad(set_to_none=True)
    divisor = step.denominator(config, max_new_tokens)
    widths = config.clip_schedule.widths(config.clip_low, config.clip_high, round_number=round_number, step=state.step)
    threshold = step.entropy_threshold(config.top_entropy) if config.top_entropy < 1 else None
    names = [field.name for field in fields(LossSums)]
    totals = dict.fromkeys(names, 0.0)
    for batch in step.batches:
        found = forward(model, batch, want_entropy=True, entropy_gradient=config.entropy_coef > 0)
        sums = loss_sums(_loss_inputs(batch, found, config, threshold), config, *widths)
        values = torch.stack([getattr(sums, name).detach().float() for name in names]).tolist()
        for name, value in zip(names, values, strict=True):
            totals[name] = max(totals[name], value) if name in MAXIMA else totals[name] + value
        _require_finite(totals["loss"], "loss", state, step)
        (sums.loss / divisor).backward()  # type: ignore[no-untyped-call]
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
    return StepSums(
        tokens=step.tokens, denominator=divisor, grad_norm=norm, grad_norms=norms, learning_rate=rate, **totals
    )


def _loss_inputs(batch: Microbatch, found: Logprobs, config: UpdateConfig, threshold: float | None) -> LossInputs:
    device = found.logprobs.device
    lengths = [len(rollout.completion_ids) for rollout in batch.rollouts]

    def flat(name: str) -> torch.Tensor | None:
        values = [getattr(rollout, name) for rollout in batch.rollouts]
        recorded = [value for value in values if value is not None]
        return torch.from_numpy(np.concatenate(recorded)).to(device) if recorded else None

    old, entropy = flat("old_logprobs"), flat("old_entropy")
    assert old is not None
    assert found.entropy is not None
    advantages = np.repeat([rollout.advantage for rollout in batch.rollouts], lengths).astype(np.float32)
    return LossInputs(
        segments=Segments.of(torch.tensor(lengths, device=device)),
        logprobs=found.logprobs,
        old_logprobs=old,
        advantages=torch.from_numpy(advantages).to(device),
        entropy=found.entropy,
        reference_logprobs=flat("ref_logprobs") if config.kl_coef > 0 else None,
        sampler_logprobs=flat("sampler_logprobs"),
        selected=None if threshold is None or entropy is None else entropy.double() >= threshold,
    )


def _require_finite(value: float, what: str, state: TrainerState, step: PlannedStep) -> None:
    if not math.isfinite(value):
        raise NonFiniteUpdate(
            f"The {what} of optimiser step {state.step + 1} (epoch {step.epoch + 1}, minibatch {step.minibatch + 1} of "
            f"its round) is {value}, so the step was not taken; look at the round's rollouts for logprobs that are not "
            f"finite, at the last rounds' grad_norm and sampler_logprob_drift, and lower update.learning_rate."
        )
