"""The policy update of one round: reference logprobs, then every optimiser step, then what they say in numbers.

Cheap to import: torch loads inside ``update_policy``, because every config file needs ``UpdateConfig``.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from grpo_core import interrupt
from grpo_core.diagnostics import update_direction
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import NonFiniteUpdate, UpdateConfig
from grpo_core.policy.metrics import UpdateMetrics, first_distance, sampler_distance, summary
from grpo_core.schemas import REFERENCE, Progress, no_progress

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from grpo_core.policy.checkpoint import Checkpoints
    from grpo_core.policy.logprobs import LogprobForm
    from grpo_core.policy.optimizer import TrainerState
    from grpo_core.policy.ranks import Ranks

__all__ = ["NonFiniteUpdate", "TrainingRollout", "UpdateConfig", "UpdateMetrics", "update_policy"]


def _unheard(rows: pa.Table) -> None:
    """The default listener of tables."""


def update_policy(
    model: "PreTrainedModel",
    reference: "Callable[[], PreTrainedModel] | None",
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
    on_step: Callable[[pa.Table], None] = _unheard,
    on_reference: Callable[[pa.Table], None] = _unheard,
    form: "LogprobForm | None" = None,
    ranks: "Ranks | None" = None,
) -> UpdateMetrics:
    """Change the model and the optimiser's state in place by epochs * minibatches steps on the round's rollouts.

    Rollouts out of the loss (dead groups, no reward, truncated ones if masked) are dropped before any forward pass; a
    round with a PPO part (``config.ppo``) keeps dead groups, for values can be learned from them. The model is put into
    eval mode and stays there: without dropout the first ratio is 1 and a round can be done again bit for bit (on a CPU;
    a GPU's kernels may add in another order).

    Args:
        model: the policy in float32 (master weights), on its device.
        reference: loads the fixed policy of the KL, of the same architecture. Not called when kl_coef is 0, when every
            rollout brings its ref_logprobs, or after a checkpoint, which has them; the model is let go before there
            are gradients. None with ``config.lora``: then the model without its adapter is the reference.
        rollouts: all of the round; rollouts of one prompt_id are a group.
        temperature: of the sampler.
        max_new_tokens: of the sampler; needed by aggregation constant without a constant_length.
        autocast_dtype: bfloat16 on a GPU, None for float32 throughout.
        checkpoints: where an interrupted update left off and where this one may; None: it is done in one go.
        progress: hears of done and total micro-batches, passes without gradient included.
        on_step: hears of every step, in order, which rollouts it took and their shares of it (``STEPS``; shares.py);
            of steps taken before an interruption together.
        on_reference: hears once, before the steps, what the reference gives the rollouts in the loss (``REFERENCE``);
            nothing in a round without KL.
        form: how the model's logprobs are computed; None: found out by trying, which needs a model in float32.
        ranks: the processes that make this very call together on a model that is sharded over them (sharded.py); every
            one comes to the same result, which is that of one process but for the rounding of sums. None: one alone.

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
    from grpo_core.policy.layers import gradient_of_rows, recomputed_layers, recomputed_products
    from grpo_core.policy.mixed import Mixture, set_targets
    from grpo_core.policy.optimizer import build_optimizer, random_numbers
    from grpo_core.policy.passes import Passes, lacking_reference, record_before
    from grpo_core.policy.ranks import ALONE
    from grpo_core.policy.shares import StepShares
    from grpo_core.policy.step import Forward, record_logprobs, run_step
    from grpo_core.policy.value import new_value_state

    ranks = ranks or ALONE
    alpha = config.ppo.alpha(round_number)
    kept = _in_any_loss(rollouts, config, alpha)
    if not kept:
        return UpdateMetrics(steps=0, tokens=0)
    if lacking_reference(kept, config) and reference is None and config.lora is None:
        raise ValueError(f"kl_coef {config.kl_coef} needs a reference policy; give one or set update.kl_coef to 0")
    if config.old_logprobs == "trainer":
        for rollout in kept:
            rollout.sampler_logprobs = rollout.old_logprobs
    model.eval()
    place: Place | None = None
    if checkpoints is not None:
        with checkpoints.newest() as folder:
            place = None if folder is None else load_place(folder, model, optimizer_state, kept)
    mixture: Mixture | None = None
    if alpha < 1:
        optimizer_state.value = optimizer_state.value or new_value_state(model)
        mixture = Mixture(alpha, optimizer_state.value, config)
    recomputed = recomputed_layers(model) if config.gradient_checkpointing else recomputed_products(model)
    with random_numbers(optimizer_state, model.device, seed), recomputed, gradient_of_rows(model):
        if place is None:
            longest = max(len(r.prompt_ids) + len(r.completion_ids) for r in kept)
            place = Place(form or inspect_model(model, longest), [], [])
        sums = place.sums
        for rows in place.shares:
            on_step(rows)
        forward = Forward(place.form, temperature, autocast_dtype)
        passes = Passes.plan(kept, config, place.form, device=model.device.type, seed=seed, round_number=round_number)
        done = passes.done_after(len(sums))

        def tick() -> None:
            nonlocal done
            done += 1
            progress(done, passes.total)

        if not sums:
            head = None if mixture is None else mixture.state.head
            record_before(model, reference, passes, config, forward, tick, head, ranks)
        if config.kl_coef > 0:
            on_reference(_reference_table(kept, round_number))
        value_metrics = None if mixture is None else set_targets(kept, config)
        if config.kl_in == "reward" and config.kl_coef > 0:
            live = [rollout for rollout in kept if rollout.in_loss]
            for rollout, penalty in zip(live, reward_penalties(live, config.kl_estimator), strict=True):
                rollout.advantage = rollout.advantage - config.kl_coef * penalty
        optimizer = build_optimizer(model, optimizer_state, config)
        for step in passes.steps[len(sums) :]:
            shares = StepShares()
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
                shares=shares,
                ranks=ranks,
            )
            sums.append(done_step)
            place.shares.append(
                shares.table(
                    step.batches,
                    round_number=round_number,
                    optimizer_step=len(sums),
                    trainer_step=optimizer_state.step,
                    ranks=ranks,
                )
            )
            on_step(place.shares[-1])
            if checkpoints is not None and checkpoints.due(len(sums), len(passes.steps)):
                optimizer_state.take_random_numbers(model.device)
                checkpoints.save(
                    len(sums), lambda folder: save_place(folder, model, optimizer_state, kept, place, ranks)
                )
            if len(sums) < len(passes.steps):  # after the last one the files come next
                interrupt.safe_point()
        compared = [(r, seen.logprobs) for r, seen in record_logprobs(model, passes.after, forward, tick, ranks=ranks)]
    direction = update_direction(
        [r.old_logprobs for r, _ in compared], [after for _, after in compared], [r.advantage for r, _ in compared]
    )
    distance = sampler_distance(kept) if config.old_logprobs == "trainer" else first_distance(sums[0])
    found = summary(sums, config, *distance, direction)
    if value_metrics is None:
        return found
    value_loss = sum(step.value_loss for step in sums) / found.tokens
    return replace(found, alpha=alpha, value_loss=value_loss, **asdict(value_metrics))


def _reference_table(kept: Sequence[TrainingRollout], round_number: int) -> pa.Table:
    rows = [
        {
            "rollout_id": rollout.rollout_id,
            "round": round_number,
            "prompt_id": rollout.prompt_id,
            "sample_index": rollout.sample_index,
            "ref_logprobs": rollout.ref_logprobs,
        }
        for rollout in sorted(kept, key=lambda rollout: (rollout.prompt_id, rollout.sample_index))
    ]
    return pa.Table.from_pylist(rows, schema=REFERENCE)


def _in_any_loss(rollouts: Sequence[TrainingRollout], config: UpdateConfig, alpha: float) -> list[TrainingRollout]:
    """Copies of the rollouts in GRPO's or PPO's loss, to write into."""
    wanted = [r for r in rollouts if r.in_loss or (alpha < 1 and r.reward is not None)]
    return [replace(r) for r in wanted if not (config.mask_truncated and r.truncated)]
