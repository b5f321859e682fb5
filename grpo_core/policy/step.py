"""One optimiser step at an explicit place (epoch, minibatch), and the passes without gradient that come before."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from grpo_core.diagnostics.gradients import clip_gradient, gradient_norms
from grpo_core.policy.batching import Microbatch, TrainingRollout, microbatches, minibatches
from grpo_core.policy.config import NonFiniteUpdate, UpdateConfig
from grpo_core.policy.head import HeadMemory
from grpo_core.policy.logprobs import LogprobForm, Logprobs, completion_logprobs
from grpo_core.policy.losses import MAXIMA, LossInputs, LossSums, clipped_tokens, denominator, loss_sums
from grpo_core.policy.mixed import Divisors, Mixture
from grpo_core.policy.optimizer import TrainerState, learning_rate_at, trainable_parameters, warmup_at
from grpo_core.policy.ranks import ALONE, Ranks
from grpo_core.policy.segments import Segments
from grpo_core.policy.shares import StepShares
from grpo_core.policy.value import ValueHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Forward:
    """How every forward pass of an update is made."""

    form: LogprobForm
    temperature: float
    autocast_dtype: torch.dtype | None
    memory: HeadMemory = field(default_factory=HeadMemory)

    def __call__(
        self,
        model: "PreTrainedModel",
        batch: Microbatch,
        want_entropy: bool,
        entropy_gradient: bool = False,
        want_hidden: bool = False,
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
                want_hidden=want_hidden,
                memory=self.memory,
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

    def divisors(self, config: UpdateConfig, max_new_tokens: int | None, *, live_only: bool = False) -> Divisors:
        """What sums over the whole step are divided by; ``live_only``: over its rollouts in GRPO's loss."""
        rollouts = [r for batch in self.batches for r in batch.rollouts if r.in_loss or not live_only]
        tokens = sum(len(r.completion_ids) for r in rollouts)
        divisor = denominator(config, tokens=tokens, sequences=len(rollouts), max_new_tokens=max_new_tokens)
        return Divisors(loss=divisor, tokens=tokens)

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
    value_loss: float  # 0 without a PPO part


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a pass without gradient says of one rollout, each of shape (tokens,)."""

    logprobs: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32] | None  # None: not asked for
    values: npt.NDArray[np.float32] | None  # None: no head was given


def plan_steps(
    rollouts: Sequence[TrainingRollout],
    config: UpdateConfig,
    form: LogprobForm,
    *,
    device: str,
    seed: int,
    round_number: int,
) -> list[PlannedStep]:
    """Every optimiser step of a round in order; a pure function, so that a step can be named and found again."""
    budget = config.microbatch_tokens(device)
    return [
        PlannedStep(epoch, number, microbatches(part, budget, form.row_crossover))
        for epoch in range(config.epochs)
        for number, part in enumerate(
            minibatches(rollouts, config.minibatches, seed=seed, round_number=round_number, epoch=epoch)
        )
    ]


def record_logprobs(
    model: "PreTrainedModel",
    batches: Sequence[Microbatch],
    forward: Forward,
    tick: Callable[[], None],
    want_entropy: bool = False,
    head: ValueHead | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[tuple[TrainingRollout, Recorded]]:
    """Each rollout with what a model says of it without gradient; ``tick`` is called after each micro-batch."""
    mine: list[list[Recorded]] = []
    for turn in ranks.turns(batches):
        with torch.no_grad():
            found = forward(model, turn.mine, want_entropy, want_hidden=head is not None)
            values = None if head is None or found.hidden is None else head(found.hidden)
        if turn.is_mine:
            cuts = np.cumsum([len(rollout.completion_ids) for rollout in turn.mine.rollouts])[:-1]
            logprobs = np.split(found.logprobs.cpu().numpy(), cuts)
            entropies, values = (
                [None] * len(logprobs) if flat is None else np.split(flat.cpu().numpy(), cuts)
                for flat in (found.entropy, values)
            )
            mine.append(list(map(Recorded, logprobs, entropies, values)))
        for _ in turn.batches:
            tick()
    for batch, recorded in zip(batches, ranks.in_order(mine), strict=True):
        yield from zip(batch.rollouts, recorded, strict=True)


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
    mixture: Mixture | None = None,
    shares: StepShares | None = None,
    ranks: Ranks = ALONE,
) -> StepSums:
    """Accumulate the gradient of the step's loss over its micro-batches, clip it, step.

    Args:
        round_number: where the schedule of the clip widths stands.
        max_new_tokens: of the sampler; None where the aggregation does not need it.
        mixture: mixes PPO in and is stepped, too; None: GRPO alone. The head's gradient is clipped by itself, so that
            its size never shortens the policy's step.
        shares: takes up what each rollout does to the step; None: nobody asks.
        ranks: the processes that share the step, of which each comes to the same sums.

    Raises:
        NonFiniteUpdate: before parameters or state are changed.
    """
    parameters = trainable_parameters(model)
    optimizer.zero_grad(set_to_none=True)
    whole = step.divisors(config, max_new_tokens)
    live = step.divisors(config, max_new_tokens, live_only=True)
    widths = config.clip_schedule.widths(config.clip_low, config.clip_high, round_number=round_number, step=state.step)
    threshold = step.entropy_threshold(config.top_entropy) if config.top_entropy < 1 else None
    objective = partial(loss_sums, config=config, clip_low=widths[0], clip_high=widths[1])
    held = partial(clipped_tokens, config=config, clip_low=widths[0], clip_high=widths[1])
    names = [one.name for one in fields(LossSums)]
    totals = dict.fromkeys([*names, "value_loss"], 0.0)
    for turn in ranks.turns(step.batches):
        batch = turn.mine
        found = forward(
            model,
            batch,
            want_entropy=True,
            entropy_gradient=config.entropy_coef > 0,
            want_hidden=mixture is not None,
        )
        if turn.is_mine:
            inputs = _loss_inputs(batch, found, config, threshold)
            if shares is not None:
                inputs.logprobs.retain_grad()
            if mixture is None:
                sums, value_loss = objective(inputs), torch.zeros_like(inputs.advantages[0])
            else:
                assert found.hidden is not None
                sums, value_loss = mixture.sums(objective, inputs, found.hidden, batch, whole, live)
            told = {name: getattr(sums, name).detach() for name in names} | {"value_loss": value_loss}
            seen, loss = torch.stack([value.float() for value in told.values()]), sums.loss / whole.loss
        else:
            seen, loss = found.logprobs.new_zeros(len(totals)), found.logprobs.sum() * 0.0
        for row in ranks.rows(seen, turn):
            for name, value in zip(totals, row.tolist(), strict=True):
                totals[name] = max(totals[name], value) if name in MAXIMA else totals[name] + value
        _require_finite(totals["loss"], "loss", state, step)
        loss.backward()  # type: ignore[no-untyped-call]
        if shares is not None and turn.is_mine:
            clipped = held(inputs) if mixture is None else mixture.clipped(held, inputs, batch)
            shares.add(inputs.segments, inputs.logprobs, clipped)
        for _ in turn.batches:
            tick()
    norms = gradient_norms(parameters)
    norm = clip_gradient(parameters.values(), config.max_grad_norm)
    _require_finite(norm, "gradient norm", state, step)
    if mixture is not None:
        ranks.add_up(mixture.state.head.parameters())
        _require_finite(mixture.clip_gradient(config.max_grad_norm), "value head's gradient norm", state, step)
        mixture.step(warmup_at(mixture.state.step, config))
    rate = learning_rate_at(state.step, config)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state.step += 1
    return StepSums(
        tokens=step.tokens, denominator=whole.loss, grad_norm=norm, grad_norms=norms, learning_rate=rate, **totals
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
