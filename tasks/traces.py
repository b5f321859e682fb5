"""A few dozen chosen rollouts of a round as MLflow traces: what was asked and answered, and what the checks say of it.

Written synchronously and under names of their own, through the client of one store: MLflow's fluent API is tied to
threads and to one global address, and its queue drops what it can't send in time. A trace and what is said on it are
one request, so a kill leaves it whole or absent; everything else says the same thing twice without harm.
"""

import datetime
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_core.labels.label import Label, meaning
from grpo_core.report.pick import hash_order, worth_labelling
from grpo_core.report.rows import Row
from tasks import trace_ids
from tasks.round_labels import stored_labels
from tasks.round_rows import read_prompts, read_rows
from tasks.run import Run
from tasks.stage import InputMissing

if TYPE_CHECKING:
    from mlflow.entities import Assessment, Span, TraceInfo

    from tasks.mirror import Mirror

VERSION = 1  # raised when the same rollouts would be traced otherwise
_PREVIEW = 1000  # characters; MLflow's own limit


def write_traces(run: Run, round_number: int, experiment_id: str, child: "Mirror", at_ms: int, started_ms: int) -> None:
    """Bring the traces of a round's run in MLflow to what lies on disk.

    A trace that is new to MLflow gets back what people had said on it, as the run's newest labels have it. One that
    belongs to the round no longer goes, unless a person has said something on it.

    Args:
        at_ms, started_ms: when the round's rollouts were finished and when it began, milliseconds since the epoch.
    """
    from mlflow.tracing.client import TracingClient

    client: Any = TracingClient(child.client.tracking_uri)
    prompts = read_prompts(run, round_number)
    rows = {
        trace_ids.trace_id(run.identity, row.rollout_id, row.text): row
        for row in worth_labelling(
            read_rows(run, round_number),
            run.config.tracking.traces,
            hash_order(run.config.seed, "traces", round_number),
        )
    }
    held = {info.trace_id: info for info in _held(child, experiment_id)}
    said = _said(run) if rows.keys() - held.keys() else []
    spans = []
    for identity, row in rows.items():
        prompt = str(prompts[row.prompt_id]["prompt"])
        ours = _checks(row, identity, at_ms)
        if identity in held:
            _renew(client, held[identity], ours)
        else:
            people = [_person(label) for label in said if label.trace_id == identity]
            info = _info(run, round_number, experiment_id, child.run_id, row, prompt, identity, at_ms, started_ms)
            info.assessments = [*ours, *people]
            client.start_trace(info)
        spans.append(_span(row, prompt, identity, at_ms, started_ms))
    _write_spans(client, experiment_id, spans)
    gone = [one.trace_id for one in held.values() if one.trace_id not in rows and not _has_people(one)]
    if gone:
        child.client.delete_traces(experiment_id, trace_ids=gone)


def _held(child: "Mirror", experiment_id: str) -> list["TraceInfo"]:
    found: list[TraceInfo] = []
    token = None
    while True:
        page = child.client.search_traces(
            locations=[experiment_id], run_id=child.run_id, max_results=500, page_token=token, include_spans=False
        )
        found += [trace.info for trace in page if trace_ids.ROLLOUT_KEY in trace.info.trace_metadata]
        token = page.token
        if not token:
            return found


def _has_people(info: "TraceInfo") -> bool:
    return any(one.source.source_type == "HUMAN" for one in info.assessments)


def _said(run: Run) -> list[Label]:
    """The newest labels that the run has stored."""
    for number in reversed(run.rounds_on_disk()):
        try:
            if labels := stored_labels(run, number):
                return labels
        except InputMissing:  # harmed: the round before knew most of them
            continue
    return []


def _info(
    run: Run,
    round_number: int,
    experiment_id: str,
    run_id: str,
    row: Row,
    prompt: str,
    identity: str,
    at: int,
    start: int,
) -> "TraceInfo":
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    keys = {
        trace_ids.RUN_KEY: run.identity,
        trace_ids.ROLLOUT_KEY: row.rollout_id,
        trace_ids.PROMPT_KEY: row.prompt_id,
        trace_ids.ROUND_KEY: str(round_number),
    }
    return TraceInfo(
        trace_id=identity,
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=start,
        execution_duration=at - start,
        state=TraceState.OK,
        request_preview=_storable(prompt)[:_PREVIEW],
        response_preview=_storable(row.text)[:_PREVIEW],
        client_request_id=row.rollout_id,
        trace_metadata={**keys, "mlflow.sourceRun": run_id, "mlflow.trace_schema.version": "3"},
        tags={**keys, "mlflow.traceName": row.rollout_id, "run": run.config.name},
    )


def _checks(row: Row, identity: str, at: int) -> list["Assessment"]:
    """What the checks say of a rollout: verdict, reward, each component, advantage. Values that are none stay away."""
    numbers = {"reward": row.reward, "advantage": row.advantage}
    numbers |= {f"component.{name}": value for name, value in sorted(row.components.items())}
    said: list[tuple[str, float | str, str | None]] = [("verdict", row.verdict, _because(row))]
    said += [(name, value, None) for name, value in numbers.items() if value is not None and math.isfinite(value)]
    return [_assessment(identity, name, value, why, at) for name, value, why in said]


def _because(row: Row) -> str:
    found = "no answer found" if row.extracted is None else f"answer {row.extracted}"
    return _storable("; ".join(part for part in (found, f"gold {row.gold}", row.detail) if part))[:_PREVIEW]


def _storable(text: str) -> str:
    """Without NUL, which a policy can write and PostgreSQL refuses in any text."""
    return text.replace("\0", "\ufffd")


def _assessment(identity: str, name: str, value: float | str, why: str | None, at: int) -> "Assessment":
    from mlflow.entities import AssessmentSource, Feedback

    made = Feedback(
        name=name,
        value=value,
        source=AssessmentSource(source_type="CODE", source_id=trace_ids.CHECK),
        trace_id=identity,
        rationale=why,
        create_time_ms=at,
        last_update_time_ms=at,
    )
    made.assessment_id = trace_ids.assessment_id(identity, name)
    return made


def _person(label: Label) -> "Assessment":
    """What a person said, as MLflow had it."""
    from mlflow.entities import AssessmentSource, Expectation, Feedback

    at = int(datetime.datetime.fromisoformat(label.at).timestamp() * 1000)
    common: dict[str, Any] = {
        "name": label.name,
        "value": label.value,
        "source": AssessmentSource(source_type="HUMAN", source_id=label.who),
        "trace_id": label.trace_id,
        "create_time_ms": at,
        "last_update_time_ms": at,
    }
    # As feedback, an expectation called "verdict" would be more than the comment that it was.
    is_feedback = label.kind == meaning(label.name, label.value, is_expectation=False)[0]
    made = Feedback(**common, rationale=label.rationale or None) if is_feedback else Expectation(**common)
    made.assessment_id = label.assessment_id
    return made


def _renew(client: Any, held: "TraceInfo", ours: Sequence["Assessment"]) -> None:
    """Let a trace that is there say what the checks say now; an assessment that a person overrode stays overridden."""
    before = {one.assessment_id: one for one in held.assessments if one.source.source_id == trace_ids.CHECK}
    for one in ours:
        old = before.pop(one.assessment_id, None)
        if old is None:
            client.log_assessment(held.trace_id, one)
        elif (old.feedback, old.rationale) != (one.feedback, one.rationale):
            client.update_assessment(held.trace_id, one.assessment_id, one)
    for left in before.values():
        client.delete_assessment(held.trace_id, left.assessment_id)


def _span(row: Row, prompt: str, identity: str, at: int, start: int) -> "Span":
    from mlflow.entities import Span

    attributes = {
        "mlflow.traceRequestId": identity,
        "mlflow.spanType": "LLM",
        "mlflow.spanInputs": {"prompt": prompt},
        "mlflow.spanOutputs": {"completion": row.text},
        "finish_reason": row.finish_reason,
        "completion_tokens": row.length,
        "extracted": row.extracted,
        "gold": row.gold,
        "detail": row.detail,
    }
    return Span.from_dict(
        {
            "trace_id": identity,
            "span_id": trace_ids.span_id(identity),
            "parent_span_id": None,
            "name": "rollout",
            "start_time_unix_nano": start * 1_000_000,
            "end_time_unix_nano": at * 1_000_000,
            "events": [],
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": {name: json.dumps(value, ensure_ascii=False) for name, value in attributes.items()},
        }
    )


def _write_spans(client: Any, experiment_id: str, spans: list["Span"]) -> None:
    """Into the store's database, or where a server takes none, as a file beside each trace, as MLflow itself does."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.tracing.utils.artifact_utils import get_artifact_uri_for_trace

    try:
        client.log_spans(experiment_id, spans)
    except (NotImplementedError, MlflowException):
        for span in spans:
            place = get_artifact_uri_for_trace(client.get_trace_info(span.trace_id))
            repository = get_artifact_repository(place, tracking_uri=client.tracking_uri)
            repository.upload_trace_data(json.dumps({"spans": [span.to_dict()]}, ensure_ascii=False))
