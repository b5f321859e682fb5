"""Which Parquet files of a run count: those of finished artifacts, by table."""

import json
import posixpath
from collections.abc import Collection, Container
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from grpo_core.artifacts import Artifact
from grpo_core.errors import UserError
from grpo_core.schemas import (
    ADVANTAGES,
    DIFFICULTY,
    EVALUATION,
    GROUPS,
    LABELS,
    PLAN,
    PROMPTS,
    REFERENCE,
    REJECTED,
    REWARDS,
    ROLLOUTS,
    STEPS,
)
from grpo_core.storage import Store

SCHEMAS: dict[str, pa.Schema] = {
    "prompts": PROMPTS,
    "held_out": PROMPTS,
    "rejected": REJECTED,
    "plan": PLAN,
    "rollouts": ROLLOUTS,
    "rewards": REWARDS,
    "advantages": ADVANTAGES,
    "difficulty": DIFFICULTY,
    "groups": GROUPS,
    "evaluation": EVALUATION,
    "labels": LABELS,
    "reference": REFERENCE,
    "steps": STEPS,
}
"""Tables by name, with what a run without any such file shows."""

# Table -> the artifact in a round's folder, and one file of it (None: every shard).
_OF_ROUND: dict[str, tuple[str, str | None]] = {
    "plan": ("plan.parquet", None),
    "rollouts": ("rollouts", None),
    "rewards": ("rewards", None),
    "advantages": ("advantages", None),
    "difficulty": ("difficulty", None),
    "groups": ("gates", "groups.parquet"),
    "evaluation": ("evaluation", None),
    "labels": ("labels", "labels.parquet"),
    "reference": ("reference", "reference.parquet"),
    "steps": ("steps", "steps.parquet"),
}
_OF_PROMPTS = {"prompts": "train.parquet", "held_out": "eval.parquet", "rejected": "rejected.parquet"}
_ADDED_LATER = ("labels", "steps")  # shown without a manifest, too: they may be written beside a finished round


_ALIKE = ("rollouts", "rewards", "advantages")  # the stages leave a shard for a shard


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run's finished tables.

    Attributes:
        tables: by table the artifacts that hold it, each as its files, relative to the run; one artifact's files have
            the same columns.
        rounds: numbers of the rounds that have a folder.
        notes: what is left out although something lies there, in sentences.
    """

    tables: dict[str, list[list[str]]]
    rounds: list[int]
    notes: list[str] = field(default_factory=list)


def beside(found: RunFiles, files: Collection[str]) -> RunFiles:
    """Only the shards that hold the same rollouts as these: those of the same names in the same rounds.

    Where a round's rollouts, rewards and advantages aren't cut into shards alike, all of its shards stay.
    """
    shards: dict[str, list[tuple[str, ...]]] = {}
    for table in _ALIKE:
        for artifact in found.tables[table]:
            shards.setdefault(_round_of(artifact[0]), []).append(tuple(map(posixpath.basename, artifact)))
    wanted: dict[str, set[str]] = {}
    for file in files:
        wanted.setdefault(_round_of(file), set()).add(posixpath.basename(file))
    tables = dict(found.tables)
    for table in _ALIKE:
        tables[table] = []
        for artifact in found.tables[table]:
            names = wanted.get(_round_of(artifact[0]), set())
            is_alike = len(set(shards[_round_of(artifact[0])])) == 1
            kept = [file for file in artifact if posixpath.basename(file) in names] if is_alike else artifact
            if names:
                tables[table].append(kept)
    return RunFiles(tables, found.rounds, found.notes)


def unscored_rollouts(found: RunFiles) -> RunFiles:
    """The rollouts of rounds without rewards, and no other file."""
    scored = {_round_of(artifact[0]) for artifact in found.tables["rewards"]}
    tables: dict[str, list[list[str]]] = {name: [] for name in found.tables}
    tables["rollouts"] = [artifact for artifact in found.tables["rollouts"] if _round_of(artifact[0]) not in scored]
    return RunFiles(tables, found.rounds, found.notes)


def _round_of(file: str) -> str:
    return posixpath.dirname(posixpath.dirname(file))


def find_files(store: Store, rounds: Container[int] | None = None) -> RunFiles:
    """The finished tables of a run, those of some rounds only where ``rounds`` is given.

    Raises:
        UserError: the folder holds no run.
    """
    if not store.exists("config.yaml"):
        raise UserError(f"'{store.uri}' holds no run (config.yaml is missing); give the folder that train printed.")
    there = [name for name in _names(store, "rounds") if name.isdigit()]
    numbers = sorted(int(name) for name in there)
    wanted = [n for n in numbers if rounds is None or n in rounds]
    found = RunFiles({name: [] for name in SCHEMAS}, numbers)
    pools = [name for name in _names(store, "") if name == "prompts" or name.startswith("prompts-")]
    places: list[tuple[str, str, str | None]] = [
        (table, pool, file) for pool in sorted(pools) for table, file in _OF_PROMPTS.items()
    ]
    places += [
        (table, f"rounds/{n:04d}/{folder}", file)
        for table, (folder, file) in _OF_ROUND.items()
        for n in (numbers if table == "labels" else wanted)  # a prompt's labels may lie in any round
    ]
    artifacts = {folder: Artifact(store, folder) for _, folder, _ in places}
    contents = _files_of_manifests(store, artifacts, found.notes)
    for table, folder, file in places:
        artifact = artifacts[folder]
        if folder in contents:
            names = [name for name in contents[folder] if name.endswith(".parquet") and file in (None, name)]
        elif table in _ADDED_LATER and file and store.exists(artifact.file(file)):
            names = [file]
        else:
            continue
        if names:
            found.tables[table].append([artifact.file(name) for name in names])
    return found


def _names(store: Store, folder: str) -> list[str]:
    full = store.path(folder)
    if not store.fs.isdir(full):
        return []
    return [posixpath.basename(entry.rstrip("/")) for entry in store.fs.ls(full, detail=False)]


def _files_of_manifests(store: Store, artifacts: dict[str, Artifact], notes: list[str]) -> dict[str, list[str]]:
    """What the manifests that lie there name, fetched in one request where the file system can do that.

    A manifest is not proven here: that is ``audit verify``, and would take longer than the question.
    """
    places = {store.path(artifact.manifest_file): folder for folder, artifact in artifacts.items()}
    contents: dict[str, Any] = {}
    if store.objects:
        contents = dict(store.objects.read_many(list(places)))
    elif places:
        contents = store.fs.cat(list(places), on_error="return")
    found: dict[str, list[str]] = {}
    for path, content in contents.items():
        folder = places[path]
        if isinstance(content, FileNotFoundError):
            continue
        if isinstance(content, Exception):
            raise content
        try:
            found[folder] = sorted(json.loads(content)["files"])
        except (ValueError, KeyError, TypeError):
            notes.append(f"{folder} is left out: its manifest can't be read.")
    return found
