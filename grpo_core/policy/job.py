"""One round's update as a piece of work: folders and rollouts in; policy, optimiser state and table of steps out.

It runs in the process that asks for it, or in each of several under torchrun (launch.py, rank.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict

from grpo_core.canary import probe_ids, probe_logprobs
from grpo_core.models import ModelConfig, compute_dtype, load_policy, load_tokenizer, save_policy
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.form import inspect_model
from grpo_core.policy.logprobs import LogprobForm
from grpo_core.policy.lora import ADAPTER_FOLDER, load_base_with_adapter, merge, require_mergeable, save_adapter
from grpo_core.policy.optimizer import load_trainer_state, new_trainer_state, save_trainer_state, trainable_parameters
from grpo_core.policy.ranks import ALONE, Ranks
from grpo_core.policy.reference import load_reference
from grpo_core.policy.sharded import PolicyFiles, load_sharded, skeleton, whole_weights
from grpo_core.policy.update import UpdateMetrics, update_policy
from grpo_core.schemas import REFERENCE, STEPS, Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from grpo_core.policy.checkpoint import Checkpoints

_ROLLOUTS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("prompt_ids", pa.list_(pa.int64())),
        ("completion_ids", pa.list_(pa.int64())),
        ("old_logprobs", pa.list_(pa.float32())),
        ("advantage", pa.float64()),
        ("in_loss", pa.bool_()),
        ("truncated", pa.bool_()),
        ("reward", pa.float64()),
        ("rollout_id", pa.string()),
        ("sample_index", pa.int64()),
    ]
)


class UpdateJob(BaseModel):
    """What an update is made from besides its rollouts; as JSON it goes to every rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Path  # what training starts from; with LoRA the base, which is the run's first policy
    reference: Path | None  # of the KL; None: there is no KL, or with LoRA: the base is the reference
    trainer_state: Path | None  # None: the first update of a run
    update: UpdateConfig  # as the round's gates left it
    model: ModelConfig
    temperature: float
    max_new_tokens: int
    seed: int
    round_number: int


@dataclass(frozen=True, slots=True)
class Trained:
    """What an update leaves. Both savers are to be called once, the optimiser's state first."""

    metrics: UpdateMetrics
    steps: pa.Table  # rows as STEPS
    reference: pa.Table  # rows as REFERENCE: what the KL was taken against
    save_trainer_state: Callable[[Path], None]
    save_policy: Callable[[Path], None]


def run_job(
    job: UpdateJob,
    rollouts: Sequence[TrainingRollout],
    device: torch.device,
    checkpoints: "Checkpoints | None",
    progress: Progress,
    ranks: Ranks = ALONE,
) -> Trained:
    """Do an update, by one process or as one of several ranks that all call this.

    Raises:
        Stopped, NonFiniteUpdate: as ``update_policy`` does, on every rank alike.
        UserError: a model or state that can't be read, or can't be sharded.
    """
    dtype = compute_dtype(job.model, device)
    form = _form(job, rollouts, device, dtype, ranks)
    model = _load_policy(job, device, dtype, ranks)
    if job.trainer_state is None:
        state = new_trainer_state(model, job.seed)
    else:
        state = load_trainer_state(job.trainer_state, model)
    steps, reference = [STEPS.empty_table()], [REFERENCE.empty_table()]
    # Gathered weights are in the dtype of computing already; autocast would only cast their gradients once more.
    autocast = None if dtype is torch.float32 or ranks.size > 1 else dtype
    metrics = update_policy(
        model,
        _reference(job, device, dtype, ranks),
        rollouts,
        state,
        job.update,
        temperature=job.temperature,
        max_new_tokens=job.max_new_tokens,
        seed=job.seed,
        round_number=job.round_number,
        autocast_dtype=autocast,
        checkpoints=checkpoints,
        progress=progress,
        on_step=steps.append,
        on_reference=reference.append,
        form=form,
        ranks=ranks,
    )
    # The policy beside a LoRA run's state is merged and rounded: the adapter itself is with the state.
    master = dtype is not torch.float32 or job.update.lora is not None
    return Trained(
        metrics,
        pa.concat_tables(steps),
        pa.concat_tables(reference),
        lambda folder: save_trainer_state(folder, model, state, master_weights=master, ranks=ranks),
        lambda folder: _save_policy(folder, job, model, dtype, ranks),
    )


def write_rollouts(path: Path, rollouts: Sequence[TrainingRollout]) -> None:
    """Write the rollouts of a job, as they are before the update, for other processes."""
    rows = [{name: getattr(rollout, name) for name in _ROLLOUTS.names} for rollout in rollouts]
    pq.write_table(pa.Table.from_pylist(rows, schema=_ROLLOUTS), path)


def read_rollouts(path: Path) -> list[TrainingRollout]:
    """What ``write_rollouts`` wrote, number for number."""
    return [TrainingRollout(**row) for row in pq.read_table(path, schema=_ROLLOUTS).to_pylist()]


def _load_policy(job: UpdateJob, device: torch.device, dtype: torch.dtype, ranks: Ranks) -> "PreTrainedModel":
    lora = job.update.lora
    if ranks.size == 1 and lora is None:
        return load_policy(job.policy, device, torch.float32)
    if lora is None:
        return load_sharded(job.policy, device, compute=dtype, base=torch.float32)
    if ranks.size > 1:
        model = load_sharded(job.policy, device, compute=dtype, base=dtype, lora=lora, seed=job.seed)
    else:
        model = load_base_with_adapter(job.policy, device, dtype, lora, job.seed)
    with PolicyFiles(job.policy) as files:
        require_mergeable(model, files)
    return model


def _reference(
    job: UpdateJob, device: torch.device, dtype: torch.dtype, ranks: Ranks
) -> "Callable[[], PreTrainedModel] | None":
    folder = job.reference
    if folder is None:
        return None
    if ranks.size > 1:
        return lambda: load_sharded(folder, device, compute=dtype, base=dtype)
    return lambda: load_reference(folder, device, dtype)


def _form(
    job: UpdateJob, rollouts: Sequence[TrainingRollout], device: torch.device, dtype: torch.dtype, ranks: Ranks
) -> LogprobForm | None:
    """How logprobs are computed, where the model that is trained would answer in less than float32; else None.

    Found out in float32 on a model that is let go again, before there are moments and activations beside it.
    """
    in_float32 = dtype is torch.float32 or (ranks.size == 1 and job.update.lora is None)
    if in_float32 or not rollouts:
        return None
    longest = max(len(r.prompt_ids) + len(r.completion_ids) for r in rollouts)
    if ranks.size > 1:
        return inspect_model(load_sharded(job.policy, device, compute=torch.float32, base=torch.float32), longest)
    return inspect_model(load_policy(job.policy, torch.device("cpu"), torch.float32), longest, device)


def _save_policy(folder: Path, job: UpdateJob, model: Any, dtype: torch.dtype, ranks: Ranks) -> None:
    """Write the policy as plain safetensors by rank 0; every rank of the update calls this."""
    tokenizer, lora = load_tokenizer(job.policy), job.update.lora
    if ranks.size == 1 and lora is None:
        save_policy(model.to(dtype), tokenizer, folder)
        return
    logprobs = probe_logprobs(model, probe_ids(model.config.get_text_config().vocab_size))
    kept = torch.float32 if lora is not None else dtype
    weights = whole_weights(trainable_parameters(model), kept, keep=ranks.rank == 0)
    if ranks.rank > 0:
        return
    plain = skeleton(job.policy).to(dtype=dtype)
    if lora is not None:
        save_adapter(folder / ADAPTER_FOLDER, weights, lora)
        with PolicyFiles(job.policy) as base:
            weights = {name: merge(name, base.all_rows(name), weights, lora).to(dtype) for name in base}
    save_policy(plain, tokenizer, folder, weights=weights, logprobs=logprobs)
