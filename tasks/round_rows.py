"""A round's rollouts with all that its tables say of them."""

import pyarrow as pa
import pyarrow.compute as pc

from grpo_core.report.rows import Row
from grpo_core.schemas import ADVANTAGES, REWARDS, ROLLOUTS
from tasks.pools import training_prompts
from tasks.run import Run, round_folder

TABLES = ("rollouts", "rewards", "advantages")
_ROLLOUTS = ("rollout_id", "prompt_id", "completion_ids", "text", "finish_reason")
_REWARDS = ("rollout_id", "verdict", "extracted", "gold", "components", "reward", "detail")
_ADVANTAGES = ("rollout_id", "advantage", "in_loss")


def read_rows(run: Run, round_number: int) -> list[Row]:
    """All rollouts of a round whose three tables are there, in the round's order."""
    rollouts = read_columns(run, round_number, "rollouts", ROLLOUTS, _ROLLOUTS)
    lengths = pc.list_value_length(rollouts["completion_ids"])
    rollouts = rollouts.drop_columns(["completion_ids"]).append_column("length", lengths)
    rewards = {
        row["rollout_id"]: row for row in read_columns(run, round_number, "rewards", REWARDS, _REWARDS).to_pylist()
    }
    advantages = read_columns(run, round_number, "advantages", ADVANTAGES, _ADVANTAGES)
    standing = {row["rollout_id"]: row for row in advantages.to_pylist()}
    rows = []
    for rollout in rollouts.to_pylist():
        identity = rollout["rollout_id"]
        reward = rewards[identity] | {"components": dict(rewards[identity]["components"])}
        rows.append(Row(**{**rollout, **reward, **standing[identity]}))
    return rows


def read_prompts(
    run: Run, round_number: int, columns: tuple[str, ...] = ("prompt", "source", "source_row")
) -> dict[str, dict[str, object]]:
    """The training prompts that a round may take, by id."""
    table = training_prompts(run, round_number, ["prompt_id", *columns])
    return {row["prompt_id"]: row for row in table.to_pylist()}


def read_columns(run: Run, round_number: int, name: str, schema: pa.Schema, columns: tuple[str, ...]) -> pa.Table:
    """Some columns of one of a round's tables."""
    part = pa.schema([schema.field(column) for column in columns])
    return run.artifact(round_folder(round_number, name)).read_table(part)
