"""MLflow's record of a run against the run folder: runs, params, metrics, and the bytes of uploaded files."""

import io
import posixpath
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.errors import UserError
from grpo_core.storage import FileRecord, file_record
from tasks.mirror import as_table_file
from tasks.rollout_table import rollout_table
from tasks.run import CONFIG, Run, round_folder
from tasks.tracking_facts import TABLES, RoundOnDisk, metric_points, params_of, pools_on_disk, read_round
from tasks.tracking_place import place_of
from tasks.tracking_store import ROUND_TAG, RUN_TAG, quiet, store_failures
from tasks.verify_report import Report, equal
from tasks.verify_tables import UNREADABLE

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

_WALL_CLOCK = "seconds/"  # from timings.json, which no digest holds
ROLLOUT_TABLE = "rollouts_table.json"
_TABLE_OF = {"rollouts", "rewards", "advantages"}


def compare_mlflow(report: Report, run: Run, rounds: Sequence[int]) -> None:
    """Name each difference between MLflow's record of these rounds and what lies on disk; changes nothing there.

    A store that can't be reached is a difference itself.
    """
    failures: tuple[type[Exception], ...] = (UserError, *store_failures())
    try:
        place = place_of(run.uri, run.config.tracking)
        if place.sqlite_file is not None and not place.sqlite_file.exists():
            raise UserError(f"'{place.sqlite_file}' is gone; rebuild it with: grpo-rounds track {run.uri}")
        with quiet():
            _compare(report, run, rounds, place.uri)
    except failures as error:
        reason = place_of(run.uri, run.config.tracking).reason(error)
        report.add("MLflow", f"its record can't be read: {reason}")


def _compare(report: Report, run: Run, rounds: Sequence[int], uri: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(run.config.tracking.experiment)
    parents = list(_search(client, experiment.experiment_id, RUN_TAG, run.identity)) if experiment else []
    if experiment is None or not parents:
        report.add("MLflow", f"it has no run of this training run; rebuild it with: grpo-rounds track {run.uri}")
        return
    parent = parents[0]
    _parent(report, run, client, parent)
    children: dict[int, list[MlflowRun]] = {}
    for child in _search(client, experiment.experiment_id, "mlflow.parentRunId", parent.info.run_id):
        if ROUND_TAG in child.data.tags:
            children.setdefault(int(child.data.tags[ROUND_TAG]), []).append(child)
    histories: dict[str, dict[int, set[float]]] = {}
    for number in rounds:
        found = read_round(run, number)
        if found.manifests:
            _history(report, client, parent, found, histories)
            mirrors = [parent] if number == 0 else children.get(number, [])
            _round(report, run, client, found, mirrors)


def _search(client: "MlflowClient", experiment_id: str, tag: str, value: str) -> Iterator["MlflowRun"]:
    token = None
    while True:
        order = ["attributes.start_time ASC"]
        page = client.search_runs([experiment_id], f"tags.{tag} = '{value}'", order_by=order, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _parent(report: Report, run: Run, client: "MlflowClient", parent: "MlflowRun") -> None:
    where = f"MLflow {parent.info.run_name}"
    for key, value in params_of(run.config).items():
        # A param is set once; a later value stands in a tag.
        told = parent.data.tags.get(f"config.{key}", parent.data.params.get(key))
        report.checked["MLflow params"] += 1
        if told != value:
            report.add(where, "a param is another one", column=key, stored=value, found=told)
    expected = {CONFIG: run.store.record(CONFIG)}
    for folder, pool in pools_on_disk(run).items():
        files = [f"{folder}/{name}" for name in pool.manifests["prompts"].files]
        expected |= {file: _on_disk(report, run, file) for file in files}
    _files(report, client, parent, where, expected)


def _history(
    report: Report,
    client: "MlflowClient",
    parent: "MlflowRun",
    found: RoundOnDisk,
    histories: dict[str, dict[int, set[float]]],
) -> None:
    """The curves of the training run pass through the round's metrics."""
    for point in metric_points(found):
        if point.key.startswith(_WALL_CLOCK):
            continue
        if point.key not in histories:
            steps: dict[int, set[float]] = {}
            history = (
                client.get_metric_history(parent.info.run_id, point.key) if point.key in parent.data.metrics else []
            )
            for past in history:
                steps.setdefault(past.step, set()).add(past.value)
            histories[point.key] = steps
        values = histories[point.key].get(found.number, set())
        report.checked["MLflow metrics"] += 1
        if not any(equal(point.value, value) for value in values):
            report.add(
                f"MLflow {parent.info.run_name}", "a metric is another one", row=f"step {found.number}",
                column=point.key, stored=point.value, found=sorted(values) or None,
            )  # fmt: skip


def _round(
    report: Report, run: Run, client: "MlflowClient", found: RoundOnDisk, mirrors: Sequence["MlflowRun"]
) -> None:
    name = f"MLflow round-{found.number:04d}"
    if len(mirrors) != 1:
        what = "the round has no run" if not mirrors else "the round has several runs"
        report.add(name, f"{what}; rebuild it with: grpo-rounds track {run.uri}")
        return
    (mirror,) = mirrors
    if found.number:
        for point in metric_points(found):
            value = mirror.data.metrics.get(point.key)
            if point.key.startswith(_WALL_CLOCK):
                continue
            report.checked["MLflow metrics"] += 1
            if value is None or not equal(point.value, value):
                report.add(name, "a metric is another one", column=point.key, stored=point.value, found=value)
    uploaded = TABLES if found.number else ("evaluation",)
    expected: dict[str, FileRecord | None] = {}
    for table in uploaded:
        if table in found.manifests:
            artifact = run.artifact(round_folder(found.number, table))
            folder = "" if table.endswith(".parquet") else table
            for file in found.manifests[table].files:
                expected[posixpath.join(folder, file)] = _on_disk(report, run, artifact.file(file))
    _files(report, client, mirror, name, expected)
    if found.number and run.config.tracking.table_rows and set(found.manifests) >= _TABLE_OF:
        _rollout_table(report, run, client, mirror, name, found.number)


def _on_disk(report: Report, run: Run, file: str) -> FileRecord | None:
    return report.records.get(file) or run.store.record(file)


def _files(
    report: Report,
    client: "MlflowClient",
    mirror: "MlflowRun",
    where: str,
    expected: Mapping[str, FileRecord | None],
) -> None:
    """Compare uploaded files with those on disk, by their bytes; one that MLflow alone has is told, too."""
    run_id = mirror.info.run_id
    for folder in sorted({posixpath.dirname(path) for path in expected}):
        wanted = {path for path in expected if posixpath.dirname(path) == folder}
        there = {item.path for item in client.list_artifacts(run_id, folder or None) if not item.is_dir}
        for path in sorted(wanted - there):
            report.add(where, "a file is missing there", column=path)
        for path in sorted(there - wanted) if folder else ():  # loose files are pictures and tables for people
            report.add(where, "a file that the disk doesn't have", column=path)
        with tempfile.TemporaryDirectory() as scratch:
            if folder and wanted & there:  # all of a folder at once: a file at a time is slow where they are many
                client.download_artifacts(run_id, folder, scratch)
            for path in sorted(wanted & there):
                record = _record(client, run_id, path, Path(scratch))
                report.checked["MLflow files"] += 1
                disk = expected[path]
                if record != disk:
                    report.add(
                        where, "a file has other bytes than on disk", column=path,
                        stored=disk.sha256 if disk else None, found=record.sha256,
                    )  # fmt: skip


def _record(client: "MlflowClient", run_id: str, path: str, scratch: Path) -> FileRecord:
    """Digest and size of one of a run's files, downloaded unless that was done already."""
    local = scratch / path
    if not local.exists():
        local = Path(client.download_artifacts(run_id, path, str(scratch)))
    with local.open("rb") as stream:
        return file_record(stream)


def _rollout_table(
    report: Report, run: Run, client: "MlflowClient", mirror: "MlflowRun", where: str, number: int
) -> None:
    """The table that MLflow's pages show says what the stored rows say."""
    there = {item.path for item in client.list_artifacts(mirror.info.run_id)}
    if ROLLOUT_TABLE not in there:
        report.add(where, "a file is missing there", column=ROLLOUT_TABLE)
        return
    try:
        made = as_table_file(rollout_table(run, number, run.config.tracking.table_rows))
    except UNREADABLE:
        return  # told already, of the artifact that can't be read
    report.checked["MLflow files"] += 1
    with tempfile.TemporaryDirectory() as scratch:
        record = _record(client, mirror.info.run_id, ROLLOUT_TABLE, Path(scratch))
    if record != file_record(io.BytesIO(made)):
        report.add(where, "the table of rollouts says something else than the stored rows", column=ROLLOUT_TABLE)
