"""Stage: write down which prompts a round takes, before anything is generated."""

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc
from prefect import task

from grpo_core.fingerprint import digest_json
from grpo_core.prompts.plan import Candidate
from grpo_core.prompts.plan import plan_round as plan_prompts
from grpo_core.schemas import Progress
from tasks import track_difficulty
from tasks.pools import pools_digest, training_prompts, training_sources_at
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 2


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    inputs = {"prompts": pools_digest(run, round_number)}
    # Those of sources that join later are no part of it; and a weight alone has nothing to be weighed against.
    weights = {source.label: source.weight for source in training_sources_at(run.config.data, round_number).sources}
    if len(weights) > 1 and None not in weights.values():
        inputs["weights"] = digest_json(weights)
    if round_number > 1:
        inputs["difficulty"] = input_digest(run, round_folder(round_number - 1, "difficulty"))
    return inputs


def _config(run: Run) -> Mapping[str, Any]:
    data = run.config.data
    keys = {"prompts_per_round", "curriculum", "difficulty", "dynamic_sampling"}
    return {"data": data.model_dump(mode="json", include=keys), "seed": run.config.seed}


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    rows = training_prompts(run, round_number, ["prompt_id", "source", "order"]).to_pylist()
    plan = plan_prompts(
        [Candidate(**row) for row in rows],
        track_difficulty.known_before(run, round_number),
        training_sources_at(run.config.data, round_number),
        round_number=round_number,
        seed=run.config.seed,
    )
    writers["plan"].write_table("plan.parquet", plan)
    turns = plan["turn"].to_pylist()
    return {
        "prompts": float(pc.sum(pc.invert(plan["reserve"])).as_py()),
        "reserve": float(pc.sum(plan["reserve"]).as_py() or 0),
        "epoch": float(plan["epoch"][0].as_py()),
        "retries": float(turns.count("retry")),
        "fillers": float(turns.count("filler")),
    }


STAGE = Stage(
    name="plan_round",
    version=STAGE_VERSION,
    folders=lambda n: {"plan": round_folder(n, "plan.parquet")},
    config=_config,
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def plan_round(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's plan; cached by ``key``."""
    return execute(STAGE, run, round_number)
