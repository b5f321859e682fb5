"""Stage: how far each rollout beat what it is compared with. A group is the key (round, prompt_id), never the place."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from prefect import task

from grpo_core.advantages.config import AdvantageConfig
from grpo_core.advantages.estimate import Batch, Estimate, estimate
from grpo_core.advantages.prior import Prior
from grpo_core.artifacts import read_parquet
from grpo_core.diagnostics import advantage_metrics
from grpo_core.labels.tiers import tier_pairs
from grpo_core.schemas import ADVANTAGES, REWARDS, ROLLOUTS, Progress
from tasks.round_labels import labels_input, tier_labels
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, InputMissing, Stage, Writers, execute, input_digest, input_manifest

STAGE_VERSION = 1
PRIOR = "prior.json"  # adaptive_tiers: what the next round's tiers start from

_LENGTHS = pa.schema([ROLLOUTS.field("rollout_id"), ROLLOUTS.field("completion_ids")])


def _follows_prior(run: Run, round_number: int) -> bool:
    return run.config.advantage.estimator == "adaptive_tiers" and round_number > 1


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    inputs = {"rewards": input_digest(run, round_folder(round_number, "rewards"))}
    if run.config.advantage.estimator == "opo":
        inputs["rollouts"] = input_digest(run, round_folder(round_number, "rollouts"))
    if _follows_prior(run, round_number):
        before = input_manifest(run, round_folder(round_number - 1, "advantages"))
        inputs["prior"] = before.digest_of(lambda name: name == PRIOR)
    return {**inputs, **labels_input(tier_labels(run, round_number))}


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    writer = writers["advantages"]
    source = run.artifact(round_folder(round_number, "rewards"))
    shards = {name: read_parquet(run.store, source.file(name), REWARDS) for name in source.tables()}
    rewards = pa.concat_tables(shards.values())
    found = estimate(
        _batch(run, round_number, rewards),
        _config(run, round_number),
        round_number,
        _prior_before(run, round_number) if _follows_prior(run, round_number) else None,
    )
    table = _table(rewards, found)
    start = 0
    for number, (name, shard) in enumerate(shards.items()):
        if not writer.has(name):
            writer.write_table(name, table.slice(start, shard.num_rows))
        start += shard.num_rows
        progress(number + 1, len(shards))
    if found.prior is not None:
        writer.write_folder(partial(_save_prior, found.prior))
    return advantage_metrics(table) | _boundary_metrics(found)


def _config(run: Run, round_number: int) -> AdvantageConfig:
    """The section ``advantage`` with people's tiers beside the config's own."""
    config = run.config.advantage
    labels = tier_labels(run, round_number)
    if not labels:
        return config
    pairs = tier_pairs(labels, config.tiers_in(round_number))
    return config.model_copy(update={"tier_labels": (*config.tier_labels, *pairs)})


def _batch(run: Run, round_number: int, rewards: pa.Table) -> Batch:
    estimator = run.config.advantage.estimator
    return Batch(
        reward=rewards["reward"].to_numpy(zero_copy_only=False).astype(np.float64),  # null becomes NaN: not a reward
        group=np.array(rewards["prompt_id"].to_pylist()),
        sample=rewards["sample_index"].to_numpy(),
        length=_lengths(run, round_number, rewards) if estimator == "opo" else None,
        components=_components(rewards) if estimator == "gdpo" else None,
    )


def _lengths(run: Run, round_number: int, rewards: pa.Table) -> npt.NDArray[np.int64]:
    """Completion lengths in tokens, joined to the rewards by key."""
    rollouts = run.artifact(round_folder(round_number, "rollouts")).read_table(_LENGTHS)
    lengths = pc.list_value_length(rollouts["completion_ids"]).to_pylist()
    by_id = dict(zip(rollouts["rollout_id"].to_pylist(), lengths, strict=True))
    return np.array([by_id[name] for name in rewards["rollout_id"].to_pylist()], dtype=np.int64)


def _components(rewards: pa.Table) -> dict[str, npt.NDArray[np.float64]]:
    """The reward's components by name, NaN where a rollout has none of that name."""
    rows = [dict(row) for row in rewards["components"].to_pylist()]
    names = sorted({name for row in rows for name in row})
    return {name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float64) for name in names}


def _prior_before(run: Run, round_number: int) -> Prior:
    folder = round_folder(round_number - 1, "advantages")
    try:
        return Prior.from_bytes(run.store.read_bytes(run.artifact(folder).file(PRIOR)))
    except FileNotFoundError as error:
        raise InputMissing(f"{folder}/{PRIOR}") from error


def _save_prior(prior: Prior, folder: Path) -> None:
    (folder / PRIOR).write_bytes(prior.to_bytes())


def _table(rewards: pa.Table, found: Estimate) -> pa.Table:
    advantages = found.advantages
    columns = {
        **{key: rewards[key] for key in ("rollout_id", "round", "prompt_id", "sample_index", "reward")},
        "group_size": advantages.group_size,
        "group_valid": advantages.group_valid,
        "group_mean": pa.array(advantages.group_mean, from_pandas=True),
        "group_std": pa.array(advantages.group_std, from_pandas=True),
        "zero_variance": advantages.zero_variance,
        "advantage": advantages.advantage,
        "in_loss": advantages.in_loss,
    }
    if advantages.rank is not None:
        columns["rank"] = pa.array(advantages.rank, from_pandas=True)
    if advantages.tier is not None:
        columns["tier"] = pa.array(advantages.tier, mask=advantages.tier < 0)
    # Columns that an estimator doesn't fill stay out of the file, so that its bytes don't depend on other estimators.
    return pa.table(columns).cast(pa.schema([field for field in ADVANTAGES if field.name in columns]))


def _boundary_metrics(found: Estimate) -> dict[str, float]:
    """The number of tiers, and the least reward of each tier that has a finite one."""
    if found.boundaries is None:
        return {}
    finite = {f"tier_{n}_from": float(b) for n, b in enumerate(found.boundaries, start=1) if np.isfinite(b)}
    return {"tiers": float(len(found.boundaries) + 1)} | finite


STAGE = Stage(
    name="compute_advantages",
    version=STAGE_VERSION,
    folders=lambda n: {"advantages": round_folder(n, "advantages")},
    config=lambda run: {"advantage": run.config.advantage.read_options()},
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def compute_advantages(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's advantages; cached by ``key``."""
    return execute(STAGE, run, round_number)
