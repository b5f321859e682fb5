"""A round's tables against each other: keys that are unique and the same everywhere, and columns that must agree."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from grpo_core.artifacts import read_parquet
from grpo_core.labels.corrections import corrections
from grpo_core.schemas import ADVANTAGES, PLAN, PROMPTS, REWARDS, ROLLOUTS, rollout_id
from grpo_core.seeding import hash64
from tasks.round_labels import scoring_labels
from tasks.run import Run, round_folder
from tasks.verify_report import Report

_KEY = ["rollout_id", "round", "prompt_id", "sample_index"]
UNREADABLE = (OSError, ValueError, KeyError, pa.ArrowException)


def read_part(report: Report, run: Run, place: str, schema: pa.Schema, columns: list[str]) -> pa.Table | None:
    """Some columns of an artifact's tables; None, with a difference told, when they can't be read; None if missing."""
    artifact = run.artifact(place)
    if artifact.manifest() is None:
        return None
    part = pa.schema([schema.field(name) for name in columns])
    try:
        return artifact.read_table(part)
    except UNREADABLE as error:
        report.add(place, f"its tables can't be read ({str(error).splitlines()[0]})")
        return None


def compare_rows(report: Report, run: Run, number: int) -> None:
    """Compare plan, prompts, rollouts, rewards and advantages of one round by their keys."""
    folder = {name: round_folder(number, name) for name in ("plan.parquet", "rollouts", "rewards", "advantages")}
    rollouts = read_part(
        report, run, folder["rollouts"], ROLLOUTS, [*_KEY, "prompt_ids", "seed", "policy_digest"]
    )  # fmt: skip
    rewards = read_part(report, run, folder["rewards"], REWARDS, [*_KEY, "gold", "reward"])
    advantages = read_part(report, run, folder["advantages"], ADVANTAGES, [*_KEY, "reward"])
    keys: dict[str, dict[str, dict[str, Any]]] = {}
    for name, table in (("rollouts", rollouts), ("rewards", rewards), ("advantages", advantages)):
        if table is not None:
            keys[name] = _by_key(report, folder[name], number, table)
            report.checked[name] += table.num_rows
    for name, before in (("rewards", "rollouts"), ("advantages", "rewards")):
        if name in keys and before in keys:
            _same_rows(report, folder[name], before, keys[name], keys[before])
    if "rewards" in keys and "advantages" in keys:
        for key, row in keys["advantages"].items():
            paid = keys["rewards"].get(key, row)["reward"]
            if paid != row["reward"]:
                _cell(report, folder["advantages"], "its reward is not that of the rewards", key, "reward", row, paid)
    if "rollouts" in keys:
        _against_plan(report, run, number, keys["rollouts"])
        _against_prompts(report, run, number, keys["rollouts"], keys.get("rewards", {}))
        _origin(report, run, number, keys["rollouts"])


def _by_key(report: Report, place: str, number: int, table: pa.Table) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for row in table.to_pylist():
        name = row["rollout_id"]
        if name in rows:
            report.add(place, "two rows have the same key", row=name, column="rollout_id")
        rows[name] = row
        if row["round"] != number:
            _cell(report, place, "a row is of another round", name, "round", row, number)
        expected = rollout_id(row["round"], row["prompt_id"], row["sample_index"])
        if name != expected:
            _cell(
                report,
                place,
                "a row's id is not that of its round, prompt and sample",
                name,
                "rollout_id",
                row,
                expected,
            )
    return rows


def _cell(report: Report, place: str, what: str, key: str, column: str, row: dict[str, Any], found: Any) -> None:
    report.add(place, what, row=key, column=column, stored=row[column], found=found)


def _same_rows(report: Report, place: str, other: str, rows: Iterable[str], expected: Iterable[str]) -> None:
    have, want = set(rows), set(expected)
    for key in sorted(want - have):
        report.add(place, f"a row of the {other} is missing", row=key)
    for key in sorted(have - want):
        report.add(place, f"a row that the {other} don't have", row=key)


def _against_plan(report: Report, run: Run, number: int, rollouts: dict[str, dict[str, Any]]) -> None:
    """Every planned prompt has its whole group, and no other prompt has one."""
    place = round_folder(number, "rollouts")
    plan = read_part(report, run, round_folder(number, "plan.parquet"), PLAN, ["prompt_id", "reserve"])
    groups: dict[str, list[int]] = {}
    for row in rollouts.values():
        groups.setdefault(row["prompt_id"], []).append(row["sample_index"])
    manifest = run.artifact(place).manifest()
    size = manifest.parts["config"].get("generation", {}).get("group_size") if manifest else None
    for prompt, samples in groups.items():
        if sorted(samples) != list(range(size or len(samples))):
            report.add(
                place, "a group is not whole", row=f"{number:04d}/{prompt}", column="sample_index",
                stored=sorted(samples), found=f"0 to {(size or len(samples)) - 1}",
            )  # fmt: skip
    if plan is None:
        return
    rows = plan.to_pylist()
    planned = {row["prompt_id"] for row in rows}
    for prompt in sorted({row["prompt_id"] for row in rows if not row["reserve"]} - set(groups)):
        report.add(place, "a planned prompt has no rollouts", row=f"{number:04d}/{prompt}")
    for prompt in sorted(set(groups) - planned):
        report.add(place, "a prompt has rollouts that were not planned", row=f"{number:04d}/{prompt}")


def _against_prompts(
    report: Report, run: Run, number: int, rollouts: dict[str, dict[str, Any]], rewards: dict[str, dict[str, Any]]
) -> None:
    """The ids that the policy was shown, and the gold that was compared, are the prompt's own."""
    columns = ["prompt_id", "prompt_ids", "gold"]
    part = pa.schema([PROMPTS.field(name) for name in columns])
    prompts: dict[str, dict[str, Any]] = {}
    for pool in prompt_pools(run):
        if run.artifact(pool).manifest() is None:
            continue
        try:
            rows = read_parquet(run.store, f"{pool}/train.parquet", part).to_pylist()
        except UNREADABLE as error:
            report.add(pool, f"its tables can't be read ({str(error).splitlines()[0]})", column="train.parquet")
            return
        prompts = {row["prompt_id"]: row for row in rows} | prompts
    corrected = corrections(scoring_labels(run, number)).golds  # by people, from this round on
    prompts |= {
        prompt: {**prompts[prompt], "gold": label.value} for prompt, label in corrected.items() if prompt in prompts
    }
    for table, rows_of_table, column in (("rollouts", rollouts, "prompt_ids"), ("rewards", rewards, "gold")):
        place = round_folder(number, table)
        for key, row in rows_of_table.items():
            prompt = prompts.get(row["prompt_id"])
            if prompt is None:
                report.add(
                    place, "its prompt is none of the run's", row=key, column="prompt_id", stored=row["prompt_id"]
                )
            elif prompt[column] != row[column]:
                _cell(report, place, f"its {column} is not the prompt's", key, column, row, prompt[column])


def prompt_pools(run: Run) -> list[str]:
    """The folders of prompts: ``prompts``, and those that were added to the running run."""
    store = run.store.serving("prompts")  # the parent's, where the run is a branch
    names = (entry.rstrip("/").rsplit("/", 1)[-1] for entry in store.fs.ls(store.root, detail=False))
    return sorted(name for name in names if name == "prompts" or name.startswith("prompts-"))


def _origin(report: Report, run: Run, number: int, rollouts: dict[str, dict[str, Any]]) -> None:
    """Each rollout was drawn from the policy that the round starts from, with the seed that the run gives it."""
    place = round_folder(number, "rollouts")
    manifest = run.artifact(place).manifest()
    policy = manifest.parts["inputs"].get("policy") if manifest else None  # proven where fingerprints are
    for key, row in rollouts.items():
        seed = hash64(run.config.seed, number, row["prompt_id"], row["sample_index"])
        if row["seed"] != seed:
            _cell(report, place, "its seed is not the one that the run gives it", key, "seed", row, seed)
        if policy is not None and row["policy_digest"] != policy:
            _cell(
                report, place, "another policy wrote it than the round starts from", key, "policy_digest", row, policy
            )
