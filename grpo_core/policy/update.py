"""The policy update of one round: reference logprobs, then every optimiser step, then what they say in numbers.

Cheap to import: torch loads inside ``update_policy``, because every config file needs ``UpdateConfig``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from grpo_core import interrupt
from grpo_core.diagnostics import choose_groups, update_direction
from grpo_core.policy.batching import TrainingRollout, microbatches
from grpo_core.policy.config import NonFiniteUpdate, UpdateConfig
from grpo_core.schemas import Progress, no_progress

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from grpo_core.policy.checkpoint import Checkpoints
    from grpo_core.policy.optimizer import TrainerState
    from grpo_core.policy.step import StepSums

__all__ = ["NonFiniteUpdate", "TrainingRollout", "UpdateConfig", "UpdateMetrics", "update_policy"]


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


def update_policy(
    model: "PreTrainedModel",
    reference: "PreTrainedModel | None",
    rollouts: Sequence[TrainingRollout],
    optimizer_state: "TrainerState",
    config: UpdateConfig,
    *,
    temperature: float,
    seed: int,
    round_number: int,
    max_new_tokens: int | None = None,
    autocast_dtype: "torch.dtype | None" = None,
    checkpoints: "Checkpoints | None" = None,
    progress: Progress = no_progress,
) -> UpdateMetrics:
    """Change the model and the optimiser's state in place by epochs * minibatches steps on the round's rollouts.

    Rollouts out of the loss (dead groups, no reward, truncated ones if masked) are dropped before any forward pass; a
    round with a PPO part (``config.ppo``) keeps dead groups, for values can be learned from them. The model is put into
    eval mode and stays there: without dropout the first ratio is 1 and a round can be done again bit for bit (on a CPU;
    a GPU's kernels may add in another order).

    Args:
        model: the policy in float32 (master weights), on its device.
        reference: the fixed policy of the KL, of the same architecture; not used when kl_coef is 0 or every rollout
            brings its ref_logprobs.
        rollouts: all of the round; rollouts of one prompt_id are a group.
        temperature: of the sampler.
        max_new_tokens: of the sampler; needed by aggregation constant without a constant_length.
        autocast_dtype: bfloat16 on a GPU, None for float32 throughout.
        checkpoints: where an interrupted update left off and where this one may; None: it is done in one go.
        progress: hears of done and total micro-batches, passes without gradient included.

    Raises:
        Stopped: it was asked for (``interrupt``); a checkpoint was saved where ``checkpoints`` found it due.
        NonFiniteUpdate: a loss or gradient norm is NaN or infinite. That step changed nothing; earlier steps of the
            round have, so the round is not to be saved.
        ValueError: no reference where one is needed, parameters that are not float32, or a rollout in GRPO's loss
            without a reward in a round with a PPO part.
    """
    from grpo_core.policy.checkpoint import Place, load_place, save_place
    from grpo_core.policy.form import inspect_model
    from grpo_core.policy.kl import reward_penalties
    from grpo_core.policy.mixed import Mixture, set_targets
    from grpo_core.policy.optimizer import build_optimizer, random_numbers
    from grpo_core.policy.step import Forward, plan_steps, record_logprobs, row_crossover, run_step
    from grpo_core.policy.value import new_value_state

    alpha = config.ppo.alpha(round_number)
    wanted = [r for r in rollouts if r.in_loss or (alpha < 1 and r.reward is not None)]
    kept = [replace(r) for r in wanted if not (config.mask_truncated and r.truncated)]
    if not kept:
        return UpdateMetrics(steps=0, tokens=0)
    lacking = [r for r in kept if r.ref_logprobs is None] if config.kl_coef > 0 else []
    if lacking and reference is None:
        raise ValueError(f"kl_coef {config.kl_coef} needs a reference policy; give one or set update.kl_coef to 0")
    trainers = config.old_logprobs == "trainer"
    if trainers:
        for rollout in kept:
            rollout.sampler_logprobs = rollout.old_logprobs
    recompute = kept if trainers or config.top_entropy < 1 or alpha < 1 else []
    model.eval()
    place: Place | None = None
    if checkpoints is not None:
        with checkpoints.newest() as folder:
            place = None if folder is None else load_place(folder, model, optimizer_state, kept)
    mixture: Mixture | None = None
    if alpha < 1:
        optimizer_state.value = optimizer_state.value or new_value_state(model)
        mixture = Mixture(alpha, optimizer_state.value, config)
    with random_numbers(optimizer_state, model.device, seed):
        if place is None:
            longest = max(len(r.prompt_ids) + len(r.completion_ids) for r in kept)
            place = Place(inspect_model(model, longest), [])
        form, sums = place.form, place.sums
        forward = Forward(form, temperature, autocast_dtype)
        steps = plan_steps(kept, config, form, seed=seed, round_number=round_number)
        to_record = microbatches(lacking, config.tokens_per_microbatch, row_crossover(form))
        to_recompute = microbatches(recompute, config.tokens_per_microbatch, row_crossover(form))
        chosen = choose_groups(
            (r.prompt_id for r in kept if r.in_loss), config.direction_groups, seed=seed, round_number=round_number
        )
        to_compare = microbatches(
            [r for r in kept if r.in_loss and r.prompt_id in chosen], config.tokens_per_microbatch, row_crossover(form)
        )
        total = len(to_record) + len(to_recompute) + sum(len(step.batches) for step in steps) + len(to_compare)
        done = 0 if not sums else total - sum(len(step.batches) for step in steps[len(sums) :]) - len(to_compare)

        def tick() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        if not sums:
            if reference is not None:
                reference.eval()
                for rollout, seen in record_logprobs(reference, to_record, forward, tick):
                    rollout.ref_logprobs = seen.logprobs
            head = None if mixture is None else mixture.state.head
            selects = config.top_entropy < 1
            for rollout, seen in record_logprobs(model, to_recompute, forward, tick, want_entropy=selects, head=head):
                rollout.old_entropy, rollout.values = seen.entropy, seen.values
                if trainers:
                    rollout.old_logprobs = seen.logprobs
        value_metrics = None if mixture is None else set_targets(kept, config)
        if config.kl_in == "reward" and config.kl_coef > 0:
            live = [rollout for rollout in kept if rollout.in_loss]
            for rollout, penalty in zip(live, reward_penalties(live, config.kl_estimator), strict=True):
                rollout.advantage = rollout.advantage - config.kl_coef * penalty
        optimizer = build_optimizer(model, optimizer_state, config)
        for step in steps[len(sums) :]:
            done_step = run_step(
                model,
                optimizer,
                optimizer_state,
                step,
                config,
                forward,
                tick,
                round_number=round_number,
                max_new_tokens=max_new_tokens,
                mixture=mixture,
            )
            sums.append(done_step)
            if checkpoints is not None and checkpoints.due(len(sums), len(steps)):
                optimizer_state.take_random_numbers(model.device)
                checkpoints.save(len(sums), lambda folder: save_place(folder, model, optimizer_state, kept, place))
            if len(sums) < len(steps):  # after the last one the files come next
                interrupt.safe_point()
        compared = [(r, seen.logprobs) for r, seen in record_logprobs(model, to_compare, forward, tick)]
    direction = update_direction(
        [r.old_logprobs for r, _ in compared], [after for _, after in compared], [r.advantage for r, _ in compared]
    )
    distance = _sampler_distance(kept) if trainers else _first_distance(sums[0])
    found = _summary(sums, config, *distance, direction)
    if value_metrics is None:
        return found
    value_loss = sum(step.value_loss for step in sums) / found.tokens
    return replace(found, alpha=alpha, value_loss=value_loss, **asdict(value_metrics))


def _sampler_distance(rollouts: Sequence[TrainingRollout]) -> tuple[float, float]:
    """Mean |trainer - sampler| and k3 of KL(sampler || trainer) over tokens."""
    differences = [r.old_logprobs - r.sampler_logprobs for r in rollouts if r.sampler_logprobs is not None]
    difference = np.concatenate(differences)
    drift = float(np.abs(difference).mean(dtype=np.float64))
    return drift, float((np.expm1(difference, dtype=np.float64) - difference).mean())


def _first_distance(first: "StepSums") -> tuple[float, float]:
    return first.drift / first.tokens, first.kl_old / first.tokens


def _summary(
    sums: "Sequence[StepSums]",
    config: UpdateConfig,
    drift: float,
    sampler_kl: float,
    direction: Mapping[str, float],
) -> UpdateMetrics:
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
        sampler_kl=sampler_kl,
        importance_mean=mean("importance") if weighed else None,
        importance_max=max(step.importance_max for step in sums) if weighed else None,
        importance_ess=effective("importance") if weighed else None,
        importance_outside=None if config.importance.correction == "none" else mean("importance_outside"),
        entropy_masked=mean("unselected") if config.top_entropy < 1 else None,
        **{f"grad_norm_{part}": sum(step.grad_norms[part] for step in sums) / len(sums) for part in sums[0].grad_norms},
        **direction,
    )
