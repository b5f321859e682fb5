"""The place reached inside an update, so that a long one which is killed goes on after its last checkpoint, exactly.

Saved: the float32 weights, the optimiser's state with the random numbers, the logprobs and values recorded before step
one, and of every step done its sums, whose count is the cursor, and its rollouts' shares. Nothing else decides the
steps to come: ``plan_steps`` is pure.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save_file

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.logprobs import LogprobForm
from grpo_core.policy.optimizer import TrainerState, load_trainer_state, save_trainer_state
from grpo_core.policy.ranks import ALONE, Ranks
from grpo_core.policy.step import StepSums
from grpo_core.schemas import STEPS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PLACE_FILE = "place.json"
_LOGPROBS_FILE = "logprobs.safetensors"
_SHARES_FILE = "steps.parquet"


class Checkpoints(Protocol):
    """Keeps checkpoints of one update; whoever runs the update knows where, and when one is due."""

    def newest(self) -> AbstractContextManager[Path | None]:
        """The files of the newest whole checkpoint of this very update, or None."""
        ...

    def due(self, steps_done: int, steps: int) -> bool:
        """Whether to save now, after so many of the round's steps."""
        ...

    def save(self, steps_done: int, produce: Callable[[Path], None]) -> None:
        """Put the files that ``produce`` writes into a folder in place, whole; then let older checkpoints go."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What is known of an update under way: the form of its forward passes, and what its steps done have left."""

    form: LogprobForm
    sums: list[StepSums]
    shares: list[pa.Table]  # rows as STEPS, in the order of the steps


def save_place(
    folder: Path,
    model: "PreTrainedModel",
    state: TrainerState,
    rollouts: Sequence[TrainingRollout],
    place: Place,
    ranks: Ranks = ALONE,
) -> None:
    """Write a checkpoint into a folder, which is whole when all ranks have returned.

    Args:
        state: with the random numbers as they stand now (``TrainerState.take_random_numbers``).
        rollouts: those in the loss, in their order, with what was recorded before step one.
    """
    save_trainer_state(folder, model, state, master_weights=True, ranks=ranks)
    if ranks.rank > 0:
        return
    recorded = {"old": np.concatenate([rollout.old_logprobs for rollout in rollouts])}
    references = [rollout.ref_logprobs for rollout in rollouts if rollout.ref_logprobs is not None]
    if references:
        recorded["reference"] = np.concatenate(references)
    entropies = [rollout.old_entropy for rollout in rollouts if rollout.old_entropy is not None]
    if entropies:
        recorded["entropy"] = np.concatenate(entropies)
    values = [rollout.values for rollout in rollouts if rollout.values is not None]
    if values:
        recorded["values"] = np.concatenate(values)
    save_file(recorded, folder / _LOGPROBS_FILE)
    pq.write_table(pa.concat_tables(place.shares), folder / _SHARES_FILE)
    told = {"form": asdict(place.form), "sums": [asdict(sums) for sums in place.sums]}
    (folder / _PLACE_FILE).write_text(json.dumps(told) + "\n", encoding="utf-8")  # a float's text is exact in JSON


def load_place(
    folder: Path, model: "PreTrainedModel", state: TrainerState, rollouts: Sequence[TrainingRollout]
) -> Place:
    """Set model, state and what the rollouts recorded back to a checkpoint, in place."""
    found = load_trainer_state(folder, model)
    for field in fields(TrainerState):
        setattr(state, field.name, getattr(found, field.name))
    recorded = load_file(folder / _LOGPROBS_FILE)
    cuts = np.cumsum([len(rollout.completion_ids) for rollout in rollouts])[:-1]
    for rollout, logprobs in zip(rollouts, np.split(recorded["old"], cuts), strict=True):
        rollout.old_logprobs = logprobs
    if "reference" in recorded:
        for rollout, logprobs in zip(rollouts, np.split(recorded["reference"], cuts), strict=True):
            rollout.ref_logprobs = logprobs
    if "entropy" in recorded:
        for rollout, entropy in zip(rollouts, np.split(recorded["entropy"], cuts), strict=True):
            rollout.old_entropy = entropy
    if "values" in recorded:
        for rollout, values in zip(rollouts, np.split(recorded["values"], cuts), strict=True):
            rollout.values = values
    told = json.loads((folder / _PLACE_FILE).read_text(encoding="utf-8"))
    shares = pq.read_table(folder / _SHARES_FILE, schema=STEPS).cast(STEPS)
    return Place(LogprobForm(**told["form"]), [StepSums(**sums) for sums in told["sums"]], [shares])
