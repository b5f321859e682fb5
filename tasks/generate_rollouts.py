"""Stage: the policy that the round starts from answers each planned prompt G times, shard by shard."""

import json
from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core import interrupt
from grpo_core.artifacts import ArtifactWriter
from grpo_core.canary import CANARY_FILE
from grpo_core.diagnostics import rollout_metrics
from grpo_core.schemas import ROLLOUTS, Progress, shifted
from tasks.early_scores import scoring_early
from tasks.pools import pools_digest
from tasks.rollout_shards import open_generator, shards_of
from tasks.run import Run, round_folder
from tasks.score_rewards import past_smoothing, scoring_digest
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest
from tasks.start_policy import start_of

STAGE_VERSION = 2


def generation_inputs(run: Run, round_number: int) -> Mapping[str, str]:
    """The artifacts that decide a round's rollouts. Raises InputMissing."""
    return {
        "policy": input_digest(run, round_folder(start_of(run, round_number), "policy")),
        "plan": input_digest(run, round_folder(round_number, "plan.parquet")),
        "prompts": pools_digest(run, round_number),
    }


def generation_key(run: Run) -> Mapping[str, Any]:
    """The part of the config that decides a round's rollouts."""
    return {
        "generation": run.config.generation.deciding(),
        "model.dtype": run.config.model.dtype,
        "seed": run.config.seed,
    }


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    writer, group_size = writers["rollouts"], run.config.generation.group_size
    shards = shards_of(run, round_number)
    pending = [shard for shard in shards if not writer.has(shard.name)]
    total, missing = (group_size * sum(len(shard.prompt_ids) for shard in some) for some in (shards, pending))
    with (
        scoring_early(
            run, round_number, writer, scoring_digest(run, round_number), past_smoothing(run, round_number)
        ) as early,
        open_generator(run, round_number, writer) as generator,
    ):
        for shard in generator.generate(pending, shifted(progress, total - missing, total)):
            early(shard.name)
            interrupt.safe_point()
        generator.ensure_canary()
    return finished_rollouts(writer)


def finished_rollouts(writer: ArtifactWriter) -> Mapping[str, float]:
    """The metrics of a round's rollouts, all of whose shards are written."""
    probed = json.loads(writer.store.read_bytes(writer.artifact.file(CANARY_FILE)))
    return rollout_metrics(writer.artifact.read_table(ROLLOUTS)) | {"canary_difference": probed["mean_difference"]}


STAGE = Stage(
    name="generate_rollouts",
    version=STAGE_VERSION,
    folders=lambda n: {"rollouts": round_folder(n, "rollouts")},
    config=generation_key,
    inputs=generation_inputs,
    compute=_compute,
    models=lambda run, n: [round_folder(start_of(run, n), "policy")],
)


@task(name=STAGE.name, **TASK_OPTIONS)
def generate_rollouts(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's rollouts; cached by ``key``."""
    return execute(STAGE, run, round_number)
