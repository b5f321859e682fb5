"""Stage: measure a round's policy on the held-out prompts."""

from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core.artifacts import read_parquet
from grpo_core.canary import check_canary
from grpo_core.evaluation import evaluate
from grpo_core.generation.open import open_engine
from grpo_core.schemas import PROMPTS, Progress
from tasks import filter_prompts
from tasks.pools import held_out_sources
from tasks.reward_tables import open_reward
from tasks.run import Run, round_folder
from tasks.score_rewards import reward_inputs, reward_key
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 1


def is_due(run: Run, round_number: int) -> bool:
    """Before the first round, after every N-th and after the last."""
    return round_number % run.config.evaluation.every == 0 or round_number == run.config.rounds


def _config(run: Run) -> Mapping[str, Any]:
    return {
        "evaluation": run.config.evaluation.model_dump(mode="json", exclude={"every"}),
        "generation": run.config.generation.deciding(exclude={"group_size", "shard_groups"}),
        "model.dtype": run.config.model.dtype,
        "seed": run.config.seed,
        **reward_key(run.config.reward),
    }


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    prompts = read_parquet(run.store, f"{filter_prompts.FOLDER}/eval.parquet", PROMPTS)
    config = run.config
    with (
        run.local_policy(round_number) as folder,
        open_engine(folder, config.model, config.generation) as engine,
        open_reward(run, config.reward) as reward,
    ):
        check_canary(engine, folder)
        table, metrics = evaluate(
            engine,
            reward,
            prompts,
            config.evaluation,
            config.generation,
            seed=config.seed,
            progress=progress,
        )
    writers["evaluation"].write_table("evaluation.parquet", table)
    return metrics


STAGE = Stage(
    name="evaluate_policy",
    version=STAGE_VERSION,
    folders=lambda n: {"evaluation": round_folder(n, "evaluation")},
    config=_config,
    inputs=lambda run, n: {
        "policy": input_digest(run, round_folder(n, "policy")),
        "prompts": input_digest(run, filter_prompts.FOLDER),
        **reward_inputs(run, held_out_sources(run.config.data), run.config.reward),
    },
    compute=_compute,
    models=lambda _, n: [round_folder(n, "policy")],
    needed=False,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def evaluate_policy(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The policy's evaluation; cached by ``key``."""
    return execute(STAGE, run, round_number)
