"""MLflow's model registry: a version for every policy that was decided about, and the alias of the champion.

Everything is found by tags before it is made, so that any number of calls, a kill between two of them and a rebuilt
record lead to the same versions. The run that a registered model was made by owns its alias ``champion``; another run
that shares the model moves an alias of its own.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_core.artifacts import Manifest
from tasks.promotion_record import decision_about, newest_decision
from tasks.run import Run, round_folder
from tasks.tracking_facts import evaluation_metrics, milliseconds
from tasks.tracking_place import place_of
from tasks.tracking_store import ROUND_TAG, RUN_TAG, Record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

ALIAS = "champion"
POLICY_TAG = "grpo_rounds.policy"
EVALUATION_TAG = "grpo_rounds.evaluation"
LOGGED_TAG = "grpo_rounds.logged_model"
WEIGHTS_TAG = "grpo_rounds.weights"
SUPERSEDED_TAG = "grpo_rounds.superseded"
_MOST_VERSIONS = 200_000  # MLflow's limit of one answer


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A policy that was decided about, as it lies on disk."""

    round: int
    policy: str
    decision: Mapping[str, Any]
    evaluation: Manifest | None  # None when it was lost after the decision
    is_retired: bool

    @property
    def key(self) -> tuple[str, str]:
        return str(self.round), self.policy


def sync_registry(record: Record, run: Run) -> None:
    """Bring the registry up to the decisions on disk. Raises what the store raises."""
    # A round without a run of its own in MLflow (yet) waits for the next sync of all.
    recorded = [number for number in run.rounds_on_disk() if number in {0, *record.children}]
    candidates = [found for number in recorded if (found := _candidate(run, number))]
    if not candidates or not run.config.promotion.enabled:
        return
    client, name = record.client, run.config.promotion.model or run.config.name
    model = _registered_model(client, name, run)
    versions = _versions(client, name, run)
    for candidate in candidates:
        facts = _facts(run, candidate)
        if candidate.key in versions:
            _update(record, versions[candidate.key], candidate, facts)
        else:
            versions[candidate.key] = _create(record, run, name, candidate, facts)
    for (number, policy), version in versions.items():
        now = run.artifact(round_folder(int(number), "policy")).manifest()
        if now is not None:
            _mark_superseded(client, version, now.digest != policy)
    _move_alias(record, run, model, versions, candidates[-1].round)


def _candidate(run: Run, number: int) -> _Candidate | None:
    decided = decision_about(run, number)
    if decided is None:
        return None
    return _Candidate(
        number,
        decided["policy"],
        decided["registry"],
        run.artifact(round_folder(number, "evaluation")).manifest(),
        run.artifact(round_folder(number, "policy")).is_retired,
    )


def _registered_model(client: "MlflowClient", name: str, run: Run) -> "RegisteredModel":
    """The registered model; one that nobody's run owns, and whose alias nobody set, becomes this run's."""
    found = client.search_registered_models(f"name = '{name}'")
    if not found:
        return client.create_registered_model(name, {RUN_TAG: run.identity})
    model = found[0]
    if RUN_TAG not in model.tags and ALIAS not in model.aliases:
        client.set_registered_model_tag(name, RUN_TAG, run.identity)
        return client.get_registered_model(name)
    return model


def _versions(client: "MlflowClient", name: str, run: Run) -> dict[tuple[str, str], "ModelVersion"]:
    """This run's versions by round and policy."""
    wanted = f"name = '{name}' and tags.`{RUN_TAG}` = '{run.identity}'"
    found = client.search_model_versions(wanted, max_results=_MOST_VERSIONS)
    return {(v.tags[ROUND_TAG], v.tags[POLICY_TAG]): v for v in found if {ROUND_TAG, POLICY_TAG} <= v.tags.keys()}


def _facts(run: Run, candidate: _Candidate) -> dict[str, str]:
    """The tags that tell of a version's decision and evaluation."""
    decision = candidate.decision
    before = decision["champion_before"]
    facts = {
        "grpo_rounds.folder": posixpath.join(run.uri, round_folder(candidate.round, "policy")),
        "grpo_rounds.decision": decision["decision"],
        "grpo_rounds.reason": decision["reason"],
        "grpo_rounds.champion_before": str(before["round"]) if before else "none",
        **{f"promotion/{key}": f"{value:.6g}" for key, value in (decision["figures"] or {}).items()},
    }
    if candidate.evaluation:
        facts |= {key: f"{value:.6g}" for key, value in evaluation_metrics(candidate.evaluation).items()}
        facts[EVALUATION_TAG] = candidate.evaluation.digest
    return facts


def _description(facts: Mapping[str, str]) -> str:
    return f"{facts['grpo_rounds.decision']}: {facts['grpo_rounds.reason']}"


def _create(record: Record, run: Run, name: str, candidate: _Candidate, facts: Mapping[str, str]) -> "ModelVersion":
    """A version and, before it, the logged model that it stands for: that one carries metrics and uploaded weights."""
    identity = {RUN_TAG: run.identity, ROUND_TAG: str(candidate.round), POLICY_TAG: candidate.policy}
    client = record.client
    logged = _logged_model(record, name, identity)
    _log_metrics(record, candidate, logged.model_id)
    source, weights = facts["grpo_rounds.folder"], "removed by retention" if candidate.is_retired else "run folder"
    if run.config.promotion.upload and not candidate.is_retired:
        with run.local_policy(candidate.round) as local:
            client.log_model_artifacts(logged.model_id, str(local))
        source, weights = logged.artifact_location, "uploaded"
    elif run.store.is_local and place_of(run.uri, run.config.tracking).artifacts is None:
        source = logged.artifact_location  # a server takes no path of this machine
    client.finalize_logged_model(logged.model_id, "READY")
    # One request with its tags: a kill leaves a version that can be found, or none.
    return client.create_model_version(
        name,
        source,
        run_id=_run_id(record, candidate.round),
        tags={**identity, **facts, LOGGED_TAG: logged.model_id, WEIGHTS_TAG: weights},
        description=_description(facts),
        model_id=logged.model_id,
        await_creation_for=0,
    )


def _logged_model(record: Record, name: str, identity: Mapping[str, str]) -> "LoggedModel":
    wanted = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in identity.items())
    found = record.client.search_logged_models([record.experiment_id], wanted)
    if found:
        return found[0]
    return record.client.create_logged_model(
        record.experiment_id,
        name=f"{name}-round-{int(identity[ROUND_TAG]):04d}",
        source_run_id=_run_id(record, int(identity[ROUND_TAG])),
        tags=dict(identity),
        model_type="policy",
    )


def _run_id(record: Record, number: int) -> str:
    """The run of a round; round 0 is the training run's."""
    return (record.children[number] if number else record.parent).run_id


def _update(record: Record, version: "ModelVersion", candidate: _Candidate, facts: Mapping[str, str]) -> None:
    """Set what has changed since the version was made: another evaluation, another decision, weights that went."""
    tags = dict(facts)
    if version.tags[WEIGHTS_TAG] != "uploaded":
        tags[WEIGHTS_TAG] = "removed by retention" if candidate.is_retired else "run folder"
    if version.tags.get(EVALUATION_TAG) != tags.get(EVALUATION_TAG):
        _log_metrics(record, candidate, version.tags[LOGGED_TAG])
    for key, value in tags.items():
        if version.tags.get(key) != value:
            record.client.set_model_version_tag(version.name, version.version, key, value)
    if version.description != _description(facts):
        record.client.update_model_version(version.name, version.version, _description(facts))


def _log_metrics(record: Record, candidate: _Candidate, model_id: str) -> None:
    """Tie the points of the round's evaluation to its logged model; a point keeps its time, so that it stays one."""
    from mlflow.entities import Metric

    if candidate.evaluation is None:
        return
    run_id, points = _run_id(record, candidate.round), []
    for key, value in evaluation_metrics(candidate.evaluation).items():
        history = record.client.get_metric_history(run_id, key)
        times = [point.timestamp for point in history if (point.step, point.value) == (candidate.round, value)]
        at = max(times, default=milliseconds(candidate.evaluation.finished_at))
        points.append(Metric(key, value, at, candidate.round, model_id=model_id))
    record.client.log_batch(run_id, metrics=points)


def _mark_superseded(client: "MlflowClient", version: "ModelVersion", superseded: bool) -> None:
    if superseded and SUPERSEDED_TAG not in version.tags:
        client.set_model_version_tag(version.name, version.version, SUPERSEDED_TAG, "true")
    elif not superseded and SUPERSEDED_TAG in version.tags:
        client.delete_model_version_tag(version.name, version.version, SUPERSEDED_TAG)


def _move_alias(
    record: Record,
    run: Run,
    model: "RegisteredModel",
    versions: Mapping[tuple[str, str], "ModelVersion"],
    newest: int,
) -> None:
    """Put the alias on the champion's version. While rounds are done again, one that lies there no more keeps it."""
    alias = ALIAS if model.tags.get(RUN_TAG) == run.identity else f"{ALIAS}-{run.identity[:8]}"
    decided = newest_decision(run, newest + 1, "registry")
    if decided is None:
        return
    champion = decided["registry"]["champion_after"]
    version = versions.get((str(champion["round"]), champion["policy"]))
    if version is not None and str(model.aliases.get(alias)) != str(version.version):
        record.client.set_registered_model_alias(model.name, alias, version.version)
    record.parent.set_tags({"grpo_rounds.champion": f"models:/{model.name}@{alias}"})
