"""Stage: what the round's rollouts say of how hard each prompt is, for the plans of the rounds after."""

from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core.artifacts import read_parquet
from grpo_core.prompts.difficulty import Difficulty, difficulty_metrics, read_difficulty, update_difficulty
from grpo_core.schemas import DIFFICULTY, PLAN, REWARDS, Progress
from tasks.pools import pools_digest, training_count
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 1
FILE = "prompts.parquet"


def known_before(run: Run, round_number: int) -> dict[str, Difficulty]:
    """What the rounds before found out about prompts, by id; nothing before round 1."""
    if round_number <= 1:
        return {}
    folder = round_folder(round_number - 1, "difficulty")
    return read_difficulty(read_parquet(run.store, f"{folder}/{FILE}", DIFFICULTY))


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    inputs = {
        "plan": input_digest(run, round_folder(round_number, "plan.parquet")),
        "rewards": input_digest(run, round_folder(round_number, "rewards")),
        "prompts": pools_digest(run, round_number),
    }
    if round_number > 1:
        inputs["difficulty"] = input_digest(run, round_folder(round_number - 1, "difficulty"))
    return inputs


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    plan = read_parquet(run.store, round_folder(round_number, "plan.parquet"), PLAN).to_pylist()
    rewards = run.artifact(round_folder(round_number, "rewards")).read_table(REWARDS)
    used = set(rewards["prompt_id"].to_pylist())  # the reserve may not have been needed
    taken = {row["prompt_id"]: row["epoch"] for row in plan if row["prompt_id"] in used}
    before = known_before(run, round_number)
    table = update_difficulty(before, taken, rewards, round_number, run.config.data.difficulty)
    writers["difficulty"].write_table(FILE, table)
    return difficulty_metrics(table, before, training_count(run, round_number))


STAGE = Stage(
    name="track_difficulty",
    version=STAGE_VERSION,
    folders=lambda n: {"difficulty": round_folder(n, "difficulty")},
    config=lambda run: {"difficulty": run.config.data.difficulty.model_dump(mode="json", exclude={"retry_share"})},
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def track_difficulty(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """What is known of each prompt after the round; cached by ``key``."""
    return execute(STAGE, run, round_number)
