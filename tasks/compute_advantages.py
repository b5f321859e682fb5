"""Stage: how far each rollout beat its own group. Group identity is the key (round, prompt_id), never the place."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from prefect import task

from grpo_core.advantages.group import group_advantages
from grpo_core.artifacts import read_parquet
from grpo_core.diagnostics import advantage_metrics
from grpo_core.schemas import ADVANTAGES, REWARDS, Progress
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 1


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    writer = writers["advantages"]
    source = run.artifact(round_folder(round_number, "rewards"))
    shards = {name: read_parquet(run.store, source.file(name), REWARDS) for name in source.tables()}
    rewards = pa.concat_tables(shards.values())
    values = rewards["reward"].to_numpy(zero_copy_only=False).astype(np.float64)  # null becomes NaN: not a reward
    _, groups = np.unique(np.array(rewards["prompt_id"].to_pylist()), return_inverse=True)
    found = group_advantages(values, groups, run.config.advantage)
    columns = {
        **{key: rewards[key] for key in ("rollout_id", "round", "prompt_id", "sample_index", "reward")},
        "group_size": found.group_size,
        "group_valid": found.group_valid,
        "group_mean": pa.array(found.group_mean, from_pandas=True),
        "group_std": pa.array(found.group_std, from_pandas=True),
        "zero_variance": found.zero_variance,
        "advantage": found.advantage,
        "in_loss": found.in_loss,
    }
    table = pa.table(columns).cast(ADVANTAGES)
    start = 0
    for number, (name, shard) in enumerate(shards.items()):
        if not writer.has(name):
            writer.write_table(name, table.slice(start, shard.num_rows))
        start += shard.num_rows
        progress(number + 1, len(shards))
    return advantage_metrics(table)


STAGE = Stage(
    name="compute_advantages",
    version=STAGE_VERSION,
    folders=lambda n: {"advantages": round_folder(n, "advantages")},
    config=lambda run: {"advantage": run.config.advantage.model_dump(mode="json")},
    inputs=lambda run, n: {"rewards": input_digest(run, round_folder(n, "rewards"))},
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def compute_advantages(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's advantages; cached by ``key``."""
    return execute(STAGE, run, round_number)
