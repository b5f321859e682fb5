"""Stage: write down which prompts a round takes, before anything is generated."""

from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core.artifacts import read_parquet
from grpo_core.prompts.plan import plan_round as plan_prompts
from grpo_core.schemas import PROMPTS, Progress
from tasks import filter_prompts
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 1


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    train = read_parquet(run.store, f"{filter_prompts.FOLDER}/train.parquet", PROMPTS)
    plan = plan_prompts(
        train["prompt_id"].to_pylist(),
        round_number=round_number,
        prompts_per_round=run.config.data.prompts_per_round,
        seed=run.config.seed,
    )
    writers["plan"].write_table("plan.parquet", plan)
    return {"prompts": float(plan.num_rows), "epoch": float(plan["epoch"][0].as_py())}


STAGE = Stage(
    name="plan_round",
    version=STAGE_VERSION,
    folders=lambda n: {"plan": round_folder(n, "plan.parquet")},
    config=lambda run: {"data.prompts_per_round": run.config.data.prompts_per_round, "seed": run.config.seed},
    inputs=lambda run, _: {"prompts": input_digest(run, filter_prompts.FOLDER)},
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def plan_round(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's plan; cached by ``key``."""
    return execute(STAGE, run, round_number)
