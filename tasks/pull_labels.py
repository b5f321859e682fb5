"""Stage: what people have said of the run's traces in MLflow so far, as a table of the round.

The one stage that looks outside the run folder. It does so once: its fingerprint names no more than the round, so what
is stored stays, whatever becomes of MLflow, and later stages depend on the stored table alone.
"""

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from prefect import task

from grpo_core.errors import UserError
from grpo_core.labels.label import Label, from_table, latest, meaning, to_table
from grpo_core.schemas import LABELS, REWARDS, ROLLOUTS, Progress
from tasks.round_labels import FILE, FOLDER, stored_labels
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, InputMissing, Stage, Writers, execute
from tasks.trace_ids import PROMPT_KEY, ROLLOUT_KEY, ROUND_KEY, RUN_KEY, trace_id
from tasks.tracking_place import place_of
from tasks.tracking_store import quiet, store_failures

if TYPE_CHECKING:
    from mlflow.entities import TraceInfo

STAGE_VERSION = 1

_PAGE = 500  # the most that MLflow gives at once
_ROLLOUTS = pa.schema([ROLLOUTS.field(name) for name in ("rollout_id", "text")])
_REWARDS = pa.schema([REWARDS.field(name) for name in ("rollout_id", "extracted", "reward")])


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    known = _known(run, round_number - 1)
    after = _after(run, round_number)
    away: dict[str, float] = {}
    if after is not None:
        labels = after
    elif run.config.labels.source == "off" or round_number == 1:
        labels = known
    else:
        labels, away = _asked(run, round_number, known)
    plan = run.artifact(round_folder(round_number, "plan.parquet")).manifest()
    if plan is not None:  # the table was lost: what was said once the round was under way was not in it
        labels = [label for label in labels if label.at < _iso(int(plan.finished_at * 1000))]
    writers["labels"].write_table(FILE, to_table(labels))
    kinds = ("verdict", "gold", "tier", "comment")
    counts = {f"{kind}s": float(sum(label.kind == kind for label in labels)) for kind in kinds}
    return {name: count for name, count in counts.items() if count} | away


def _known(run: Run, round_number: int) -> list[Label]:
    try:
        return stored_labels(run, round_number) if round_number else []
    except InputMissing:  # harmed since: then MLflow, or nobody, says what was in it
        return []


def _after(run: Run, round_number: int) -> list[Label] | None:
    """What the next round knew, for a round whose own table was lost; None where there is no next round."""
    artifact = run.artifact(round_folder(round_number + 1, FOLDER))
    if not artifact.condition().done:
        return None
    return [label for label in from_table(artifact.read_table(LABELS)) if label.round < round_number]


def _asked(run: Run, round_number: int, known: list[Label]) -> tuple[list[Label], dict[str, float]]:
    """What MLflow holds, and where it can't be asked, what was known before, with a metric that says so.

    Raises:
        UserError: MLflow can't be asked and ``labels.needed`` is set.
    """
    failures: tuple[type[Exception], ...] = (UserError, *store_failures())
    try:
        with quiet():
            return _merged(run, round_number, known, _traces(run)), {}
    except failures as error:
        if run.config.labels.needed:
            reason = place_of(run.uri, run.config.tracking).reason(error)
            raise UserError(
                f"labels.needed is set and MLflow can't be asked for people's labels ({reason}); mend "
                "that, or set labels.needed to false."
            ) from error
        return known, {"mlflow_unreachable": 1.0}


def _traces(run: Run) -> list["TraceInfo"]:
    """The run's newest traces, ``labels.newest_traces`` at most."""
    from mlflow import MlflowClient

    place = place_of(run.uri, run.config.tracking)
    file = place.sqlite_file
    if file is not None and not file.exists():
        return []
    client = MlflowClient(tracking_uri=place.uri)
    experiment = client.get_experiment_by_name(run.config.tracking.experiment)
    found: list[TraceInfo] = []
    token = None
    while experiment is not None:
        page = client.search_traces(
            locations=[experiment.experiment_id],
            filter_string=f"metadata.`{RUN_KEY}` = '{run.identity}'",
            max_results=min(_PAGE, run.config.labels.newest_traces - len(found)),
            order_by=["timestamp_ms DESC"],
            page_token=token,
            include_spans=False,
        )
        found += [trace.info for trace in page]
        token = page.token
        if not token or len(found) >= run.config.labels.newest_traces:
            break
    return found


def _merged(run: Run, round_number: int, known: list[Label], traces: list["TraceInfo"]) -> list[Label]:
    """What people say now on the traces looked at, and of all others what they had said before."""
    facts = {label.trace_id: (label.extracted, label.completion, label.reward) for label in known}
    rounds = _Rounds(run)
    labels = [label for label in known if label.trace_id not in {info.trace_id for info in traces}]
    for info in traces:
        said = [one for one in info.assessments if one.source.source_type == "HUMAN" and one.valid is not False]
        number = int(info.trace_metadata.get(ROUND_KEY, round_number))
        if not said or number >= round_number:
            continue
        labelled = info.trace_metadata[ROLLOUT_KEY]
        about = facts.get(info.trace_id) or rounds.facts(number, labelled, info.trace_id)
        if about is None:  # a rollout that was generated anew since
            continue
        for one in said:
            held = one.expectation or one.feedback
            if held is None:  # a link to an issue
                continue
            kind, text = meaning(one.name, held.value, is_expectation=one.expectation is not None)
            labels.append(
                Label(
                    rollout_id=labelled,
                    prompt_id=info.trace_metadata[PROMPT_KEY],
                    round=number,
                    kind=kind,
                    name=one.name,
                    value=text,
                    who=one.source.source_id or "someone",
                    at=_iso(one.last_update_time_ms or one.create_time_ms or 0),
                    rationale=one.rationale or "",
                    trace_id=info.trace_id,
                    assessment_id=one.assessment_id or "",
                    extracted=about[0],
                    completion=about[1],
                    reward=about[2],
                )
            )
    return latest(labels)


class _Rounds:
    """Extracted answer, text and reward of rollouts, each round's tables read once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._read: dict[int, dict[str, tuple[str | None, str, float | None]]] = {}

    def facts(self, number: int, rollout: str, trace: str) -> tuple[str | None, str, float | None] | None:
        """None when the run has no such rollout any more."""
        if number not in self._read:
            self._read[number] = self._table(number)
        found = self._read[number].get(rollout)
        return found if found is not None and trace_id(self._run.identity, rollout, found[1]) == trace else None

    def _table(self, number: int) -> dict[str, tuple[str | None, str, float | None]]:
        rollouts, rewards = (self._run.artifact(round_folder(number, name)) for name in ("rollouts", "rewards"))
        if rollouts.manifest() is None or rewards.manifest() is None:
            return {}
        texts = {row["rollout_id"]: row["text"] for row in rollouts.read_table(_ROLLOUTS).to_pylist()}
        return {
            row["rollout_id"]: (row["extracted"], texts[row["rollout_id"]], row["reward"])
            for row in rewards.read_table(_REWARDS).to_pylist()
            if row["rollout_id"] in texts
        }


def _iso(milliseconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


STAGE = Stage(
    name="pull_labels",
    version=STAGE_VERSION,
    folders=lambda n: {"labels": round_folder(n, FOLDER)},
    config=lambda run: {},
    inputs=lambda run, _: {},
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def pull_labels(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's labels; cached by ``key``."""
    return execute(STAGE, run, round_number)
