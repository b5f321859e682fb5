"""A few whole groups of a round as a table to read: what was asked, answered, found and rewarded."""

from collections import Counter

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from grpo_core.report.pick import covering_groups, hash_order
from grpo_core.schemas import ADVANTAGES, REWARDS, ROLLOUTS
from tasks.pools import training_prompts
from tasks.run import Run, round_folder

_ROLLOUTS = ["rollout_id", "prompt_id", "completion_ids", "text", "finish_reason"]
_REWARDS = ["rollout_id", "verdict", "extracted", "gold", "reward"]
_ADVANTAGES = ["rollout_id", "advantage", "in_loss"]
_COLUMNS = ["rollout_id", "prompt", "completion", "extracted", "gold", "verdict", "reward", "advantage", "in_loss"]
_COLUMNS += ["finish_reason", "completion_length"]


def rollout_table(run: Run, round_number: int, rows: int) -> pd.DataFrame:
    """About ``rows`` rollouts of a round with their rewards and advantages, in the round's order.

    Whole groups only, so that a group's advantages can be understood; at least one. First come groups that hold the
    best reward, the worst and each verdict that occurs, then others by a hash of (seed, round, prompt_id): the same
    ones every time, spread over the round.
    """
    rollouts = _read(run, round_number, "rollouts", ROLLOUTS, _ROLLOUTS)
    found = _read(run, round_number, "rewards", REWARDS, ["prompt_id", "verdict", "reward"])
    chosen = pa.array(sorted(_choose(run.config.seed, round_number, found, rows)))
    rollouts = rollouts.filter(pc.is_in(rollouts["prompt_id"], chosen))
    rollouts = rollouts.append_column("length", pc.list_value_length(rollouts["completion_ids"]))
    prompts = training_prompts(run, round_number, ["prompt_id", "prompt"]).to_pandas()
    table: pd.DataFrame = (
        rollouts.drop_columns(["completion_ids"]).to_pandas().merge(prompts, on="prompt_id", how="left")
    )
    for name, schema, columns in (("rewards", REWARDS, _REWARDS), ("advantages", ADVANTAGES, _ADVANTAGES)):
        more = _read(run, round_number, name, schema, columns).to_pandas()
        table = table.merge(more, on="rollout_id", how="left")
    table = table.rename(columns={"text": "completion", "length": "completion_length"})
    return table[_COLUMNS]


def _choose(seed: int, round_number: int, rewards: pa.Table, rows: int) -> list[str]:
    """Prompts, those that cover the round first, until the next group would go beyond ``rows``."""
    prompt_ids, verdicts, values = (rewards[name].to_pylist() for name in ("prompt_id", "verdict", "reward"))
    sizes = Counter(prompt_ids)
    order = hash_order(seed, "rollout_table", round_number)
    chosen: list[str] = []
    total = 0
    for prompt_id in covering_groups(prompt_ids, verdicts, values, order):
        total += sizes[prompt_id]
        if chosen and total > rows:
            break
        chosen.append(prompt_id)
    return chosen


def _part(schema: pa.Schema, columns: list[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns])


def _read(run: Run, round_number: int, name: str, schema: pa.Schema, columns: list[str]) -> pa.Table:
    return run.artifact(round_folder(round_number, name)).read_table(_part(schema, columns))
