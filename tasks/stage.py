"""A stage: a key of all that it depends on, a check of what lies on disk, and the work when that is not enough.

The disk decides, never Prefect's database: a stage runs unless every artifact of its lies there with the right
fingerprint and the right bytes. Prefect shows the same truth, because its cache key is the fingerprint and a cached
result whose artifact is gone is refreshed.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prefect.cache_policies import CacheKeyFnPolicy
from prefect.context import TagsContext, TaskRunContext

from grpo_core import faults
from grpo_core.artifacts import ArtifactWriter, Condition, Manifest
from grpo_core.errors import UserError
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import Progress
from tasks.run import Run

Writers = Mapping[str, ArtifactWriter]


class Listener(Protocol):
    """Hears how stages get on; the command line draws its table and progress bars from this."""

    def stage_started(self, stage: str, round_number: int, why: str) -> None: ...

    def stage_progress(self, stage: str, round_number: int, done: int, total: int) -> None: ...

    def stage_ended(self, stage: str, round_number: int, seconds: float, cached: bool) -> None: ...


_listener: Listener | None = None


def set_listener(listener: Listener | None) -> None:
    """Let one listener hear the stages of this process."""
    global _listener
    _listener = listener


def listener() -> Listener | None:
    """Who hears the stages of this process."""
    return _listener


@dataclass(frozen=True, slots=True)
class PerArtifact:
    """What ``compute`` returns where each artifact has metrics of its own: these, by the artifact's short name."""

    metrics: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage reads, leaves and does.

    Attributes:
        name: the stage's name on every floor.
        version: STAGE_VERSION; raised when the same inputs would give other bytes.
        folders: artifacts that it leaves for a round, keyed by their short names.
        config: the part of the config that it reads.
        inputs: digests of the artifacts that it reads, by name.
        compute: does the work through one writer an artifact; returns metrics.
        models: the model artifacts whose files it needs for that, not their digests alone; retention may have removed
            them.
        needed: False where nothing else reads what it leaves, so that old results stand rather than that retired models
            are made again for their sake.
    """

    name: str
    version: int
    folders: Callable[[int], Mapping[str, str]]
    config: Callable[[Run], Mapping[str, Any]]
    inputs: Callable[[Run, int], Mapping[str, str]]
    compute: Callable[[Run, int, Writers, Progress], Mapping[str, float] | PerArtifact]
    models: Callable[[Run, int], Sequence[str]] = lambda _run, _number: ()
    needed: bool = True
    records: Collection[str] = ()

    def possible(self, run: Run, round_number: int) -> bool:
        """False when it isn't needed and a model that it would take has been retired."""
        return self.needed or not self._takes_retired(run, round_number)

    def _takes_retired(self, run: Run, round_number: int) -> bool:
        return any(run.artifact(folder).is_retired for folder in self.models(run, round_number))

    def fingerprint(self, run: Run, round_number: int) -> Fingerprint:
        """The key. Raises InputMissing when an artifact that it reads is not there."""
        return Fingerprint(
            stage=self.name,
            round=round_number,
            version=self.version,
            config=self.config(run),
            inputs=self.inputs(run, round_number),
        )

    def condition(self, run: Run, round_number: int, fingerprint: Fingerprint) -> Condition:
        """How the stage's artifacts stand, proven byte by byte; the first that is not done speaks for all."""
        folders = self.folders(round_number)
        conditions = {name: run.artifact(folder).condition(fingerprint) for name, folder in folders.items()}
        lacking = [name for name, condition in conditions.items() if not condition.done]
        found = conditions[lacking[0] if lacking else list(folders)[-1]]
        spared = not self.needed or set(lacking) <= set(self.records)
        if lacking and spared and self._takes_retired(run, round_number):
            return Condition("done", f"left as it is ({found.why}): retention removed the policy that it would take")
        return found


class InputMissing(LookupError):
    """An artifact that a stage reads does not exist (yet)."""


def input_manifest(run: Run, folder: str) -> Manifest:
    """The manifest of an artifact that a stage reads. Raises InputMissing."""
    manifest = run.artifact(folder).manifest()
    if manifest is None:
        raise InputMissing(folder)
    return manifest


def input_digest(run: Run, folder: str) -> str:
    """The digest of an artifact that a stage reads. Raises InputMissing."""
    return input_manifest(run, folder).digest


def _cache_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    return f"{parameters['stage']}-{parameters['key']}"


CACHE_POLICY = CacheKeyFnPolicy(cache_key_fn=_cache_key)
TASK_OPTIONS: dict[str, Any] = {"cache_policy": CACHE_POLICY, "persist_result": True, "result_serializer": "json"}


def run_stage(
    task: Any, stage: Stage, run: Run, round_number: int, prepare: Callable[[Stage, Run, int], None]
) -> dict[str, Any]:
    """Call a stage's Prefect task so that it runs, or shows as Cached, as the disk demands.

    Args:
        prepare: called before a stage that has to run, to see to it that the models it takes lie on disk.
    """
    fingerprint = stage.fingerprint(run, round_number)
    condition = stage.condition(run, round_number, fingerprint)
    if condition.done:
        for folder in stage.folders(round_number).values():
            run.artifact(folder).remove_marks()
    else:
        prepare(stage, run, round_number)
    if _listener:
        _listener.stage_started(stage.name, round_number, "" if condition.done else condition.why)
    began = time.monotonic()
    chosen = task.with_options(refresh_cache=not condition.done, task_run_name=f"{stage.name}-{round_number:04d}")
    with TagsContext():  # for each of a flow run's tags, Prefect would ask its server for a slot
        result: dict[str, Any] = chosen(run, round_number, stage=stage.name, key=fingerprint.digest)
    if _listener:
        _listener.stage_ended(stage.name, round_number, time.monotonic() - began, condition.done)
    return result


def execute(stage: Stage, run: Run, round_number: int) -> dict[str, Any]:
    """Do a stage's work unless its artifacts already lie there; the body of every stage's task.

    Returns:
        ``{"metrics": {...}, "digests": {artifact: digest}}``, small enough to be a Prefect result.
    """
    fingerprint = stage.fingerprint(run, round_number)
    folders = stage.folders(round_number)
    if not stage.condition(run, round_number, fingerprint).done:
        faults.point(f"stage-start:{stage.name}:{round_number}")
        writers = {name: ArtifactWriter(run.artifact(folder), fingerprint) for name, folder in folders.items()}

        def progress(done: int, total: int) -> None:
            faults.point(f"progress:{stage.name}:{round_number}")
            if _listener:
                _listener.stage_progress(stage.name, round_number, done, total)

        try:
            measured = stage.compute(run, round_number, writers, progress)
        except InputMissing as missing:
            raise UserError(f"'{run.uri}/{missing}' is gone; run: grpo-rounds resume {run.uri}") from missing
        for name, writer in writers.items():
            metrics = measured.metrics[name] if isinstance(measured, PerArtifact) else measured
            writer.finish(metrics)
    found = {name: run.artifact(folder).manifest() for name, folder in folders.items()}
    manifests = {name: manifest for name, manifest in found.items() if manifest is not None}  # none if not possible
    metrics = dict(list(manifests.values())[-1].metrics) if manifests else {}
    return {"metrics": metrics, "digests": {name: m.digest for name, m in manifests.items()}}
