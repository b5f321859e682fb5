"""MLflow's record of a run: a mirror of the run folder, which alone is the truth.

``Tracker.sync`` may be called at any time, any number of times and after any kill: it looks at what lies on disk and at
what MLflow holds, and adds what is missing. The parent run is the training run, a child run is a round.
"""

import posixpath
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal

from grpo_core.artifacts import Manifest, read_parquet
from grpo_core.errors import UserError
from grpo_core.fingerprint import digest_json
from grpo_core.schemas import REJECTED
from tasks import traces
from tasks.branch import origin
from tasks.learning_curve import draw_curve
from tasks.mirror import Mirror
from tasks.registry import sync_registry
from tasks.report import report_digest, round_report
from tasks.rollout_table import rollout_table
from tasks.run import CONFIG, Run, round_folder
from tasks.stage import InputMissing
from tasks.tracking_datasets import pool_inputs, round_inputs
from tasks.tracking_facts import (
    TABLES,
    RoundOnDisk,
    metric_points,
    milliseconds,
    params_of,
    pools_on_disk,
    read_round,
)
from tasks.tracking_place import place_of
from tasks.tracking_prompts import draw_rejected, rejected_reasons, rejected_rows
from tasks.tracking_store import Record, connect, quiet, store_failures

if TYPE_CHECKING:
    from mlflow.entities import Metric

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

SYNCED_TAG = "grpo_rounds.synced"  # digest of all that a round has on disk: equal means that nothing is to be done
GATES_TAG = "grpo_rounds.gates"  # what the gates of a round found and did
TRACES_TAG = "grpo_rounds.uploaded.traces"
BRANCH_TAG = "grpo_rounds.branch_of"  # the identity of the run that a branch was made from
_LONGEST_TAG = 4000  # MLflow takes 5000 characters
_TABLE_OF = ("rollouts", "rewards", "advantages")  # what the table of rollouts is made of
_BETWEEN_CURVES = 10.0  # seconds; a drawing takes as long as all else that is sent of a small round
_FORMAT = 2  # raised when the same round would be mirrored otherwise


class Tracker:
    """Keeps MLflow's record of one run. A store that fails or is away never stops the run: see ``problem``.

    Attributes:
        ui_command: how to look at the record: a command for the shell, or the server's address.
        problem: one sentence when the record is behind the disk, else None. The next ``sync`` makes up for it.

    Raises:
        UserError: the tracking address can't be one; at the first contact also when the experiment was deleted.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.place = place_of(origin(run.uri), run.config.tracking)
        self.ui_command = self.place.ui_command
        self.problem: str | None = None
        self._record: Record | None = None
        self._was_contacted = False
        self._status: Status | None = None
        self._rounds: dict[int, RoundOnDisk] = {}
        self._curve_at = -_BETWEEN_CURVES

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the parent run; None when the store can't be reached."""
        self._guarded(lambda record: None)
        return self._record.parent.run_id if self._record else None

    def page_of(self, round_number: int) -> str | None:
        """The address of a round's page; None where the store is no server, or its record is behind."""
        record = self._record
        if record is None or not self.place.uri.startswith(("http://", "https://")):
            return None
        mirrored = record.children.get(round_number, record.parent)  # round 0 has no page of its own
        return f"{self.place.ui_command.rstrip('/')}/#/experiments/{record.experiment_id}/runs/{mirrored.run_id}"

    def sync(self, rounds: Iterable[int] | None = None, more_to_come: bool = False) -> str | None:
        """Bring MLflow's record of these rounds (None: all) up to what lies on disk; returns ``problem``.

        Args:
            more_to_come: the caller will sync again; if that is soon, the learning curve is drawn then.
        """
        # After a failure anything may be missing; a round that isn't costs one comparison.
        wanted = None if rounds is None or self.problem else set(rounds)

        def work(record: Record) -> None:
            on_disk = self.run.rounds_on_disk()
            for number in on_disk:
                if wanted is None or number in wanted or number not in self._rounds:
                    self._rounds[number] = read_round(self.run, number)
            for number in on_disk:
                if wanted is None or number in wanted:
                    self._sync_round(record, self._rounds[number])
            self._sync_prompts(record.parent)
            sync_registry(record, self.run)
            if not more_to_come or time.monotonic() - self._curve_at >= _BETWEEN_CURVES:
                self._sync_curve(record.parent, [self._rounds[number] for number in on_disk])
            self._send_status(record)

        if self._guarded(work):
            self.problem = None
        return self.problem

    def set_status(self, status: Status) -> None:
        """Set the training run's status; rounds that were left unfinished get the same when it is a bad end."""
        self._status = status
        self._guarded(self._send_status)

    def _guarded(self, work: Callable[[Record], None]) -> bool:
        """Do work with the store, connecting first when need be; False when the store failed (see ``problem``)."""
        failures: tuple[type[Exception], ...] = (UserError, InputMissing, *store_failures())
        try:
            with quiet():
                if self._record is None:
                    self._record = connect(self.run, self.place)
                    self._describe(self._record.parent)
                work(self._record)
        except failures as error:
            # A wrong setting is told at the first contact; later on, training is worth more than its record.
            if isinstance(error, UserError) and not self._was_contacted:
                raise
            self._record = None
            reason = self.place.reason(error)
            self.problem = (
                f"MLflow's record of '{self.run.uri}' is behind ({reason}); when the store is well again, rebuild it "
                f"with: grpo-rounds track {self.run.uri}"
            )
            return False
        finally:
            self._was_contacted = True
        return True

    def _describe(self, parent: Mirror) -> None:
        """Name, config and params: what is known before any round is."""
        run = self.run
        parent.rename(run.config.name)
        note = f"Run folder: `{run.uri}`. It is the truth; rebuild this record with `grpo-rounds track {run.uri}`."
        parent.set_tags({"grpo_rounds.folder": run.uri, "mlflow.note.content": note})
        if run.branch:
            parent.set_tags({BRANCH_TAG: run.branch.parent_id})
        params = params_of(run.config)
        parent.add_params(params)
        # A param is set once; what may change while a run lives goes on as a tag.
        latest = {
            f"config.{key}": value
            for key, value in params.items()
            if parent.params[key] != value or f"config.{key}" in parent.tags
        }
        parent.set_tags(latest)
        record = run.store.record(CONFIG)
        parent.upload(run.store, {CONFIG: CONFIG}, "config", record.sha256 if record else "")

    def _sync_round(self, record: Record, found: RoundOnDisk) -> None:
        if not found.manifests:
            return
        tracking = self.run.config.tracking
        digest = digest_json([_FORMAT, tracking.table_rows, tracking.traces, found.digest])
        if found.number == 0:
            self._sync_start(record.parent, found, digest)
            return
        child = record.child(found.number, found.started_ms)
        if child.tags.get(SYNCED_TAG) == digest:
            return
        # The child remembers what the parent has: the parent goes first, so that a kill in between loses nothing, and
        # a stage that was made once more, with the same values at another time, adds no second point.
        points = [point for point in metric_points(found) if child.metrics.get(point.key) != point.value]
        record.parent.log_metrics(points)
        child.log_metrics(points)
        child.add_inputs(list(round_inputs(self.run, found.number)))
        for name in TABLES:
            self._upload(child, found, name)
        if set(_TABLE_OF) <= set(found.manifests):
            self._put_rollout_table(child, found)
            child.put_file(
                "report.html", lambda: round_report(self.run, found.number), report_digest(self.run, found.number)
            )
            self._put_traces(record, child, found)
        if found.findings or GATES_TAG in child.tags:
            child.set_tags({GATES_TAG: "; ".join(found.findings)[:_LONGEST_TAG]})
        child.set_status("FINISHED" if "policy" in found.manifests else "RUNNING", found.finished_ms)
        child.set_tags({SYNCED_TAG: digest})

    def _sync_start(self, parent: Mirror, found: RoundOnDisk, digest: str) -> None:
        """Round 0 is the policy that training starts from: it has no run of its own."""
        tag = f"{SYNCED_TAG}.0000"
        if parent.tags.get(tag) == digest:
            return
        parent.log_metrics(_not_yet_logged(parent, metric_points(found)))
        self._upload(parent, found, "evaluation")
        parent.set_tags({tag: digest})

    def _upload(self, mirror: Mirror, found: RoundOnDisk, name: str) -> None:
        if name in found.manifests:
            artifact = self.run.artifact(round_folder(found.number, name))
            folder = "" if name.endswith(".parquet") else name
            self._upload_files(mirror, artifact.folder, folder, name.partition(".")[0], found.manifests[name])

    def _upload_files(self, mirror: Mirror, source: str, target: str, label: str, manifest: Manifest) -> None:
        files = {posixpath.join(source, file): posixpath.join(target, file) for file in manifest.files}
        mirror.upload(self.run.store, files, label, manifest.digest)

    def _put_rollout_table(self, child: Mirror, found: RoundOnDisk) -> None:
        rows = self.run.config.tracking.table_rows
        if rows == 0:
            return
        digest = digest_json([rows, *(found.manifests[part].digest for part in _TABLE_OF)])
        child.put_table("rollouts_table.json", lambda: rollout_table(self.run, found.number, rows), digest)

    def _put_traces(self, record: Record, child: Mirror, found: RoundOnDisk) -> None:
        count = self.run.config.tracking.traces
        digest = digest_json([traces.VERSION, count, *(found.manifests[part].digest for part in _TABLE_OF)])
        if count == 0 or child.tags.get(TRACES_TAG) == digest:
            return
        finished = milliseconds(found.manifests["rollouts"].finished_at)
        began = min(found.started_ms, finished)
        traces.write_traces(self.run, found.number, record.experiment_id, child, finished, began)
        child.set_tags({TRACES_TAG: digest})

    def _sync_curve(self, parent: Mirror, rounds: list[RoundOnDisk]) -> None:
        summaries = [found.summary for found in rounds if found.manifests]
        if summaries:
            name = self.run.config.name
            digest = digest_json([_FORMAT, name, summaries])
            self._curve_at = time.monotonic()
            parent.put_file("learning_curve.png", lambda: draw_curve(name, summaries), digest)

    def _sync_prompts(self, parent: Mirror) -> None:
        for folder, found in pools_on_disk(self.run).items():
            tag = f"{SYNCED_TAG}.{folder}"
            if parent.tags.get(tag) == found.digest:
                continue
            manifest, later = found.manifests["prompts"], folder.removeprefix("prompts")
            parent.log_metrics(_not_yet_logged(parent, metric_points(found)))
            self._upload_files(parent, folder, folder, folder, manifest)
            rejected = read_parquet(self.run.store, f"{folder}/rejected.parquet", REJECTED).to_pandas()
            reasons, rows = partial(rejected_reasons, rejected), partial(rejected_rows, rejected)
            parent.put_table(f"rejected_reasons{later}.json", reasons, manifest.digest)
            parent.put_table(f"rejected_rows{later}.json", rows, manifest.digest)
            kept = int(manifest.metrics["train"] + manifest.metrics["eval"])
            picture = partial(draw_rejected, self.run.config.name, kept, rejected)
            parent.put_file(f"prompts_rejected{later}.png", picture, manifest.digest)
            parent.add_inputs(list(pool_inputs(self.run, folder, manifest)))
            parent.set_tags({tag: found.digest})

    def _send_status(self, record: Record) -> None:
        if self._status is None:
            return
        # An end is dated by the last thing that was finished, so that it is the same whenever it is told.
        last = [read_round(self.run, number).finished_ms for number in self.run.rounds_on_disk()[-1:]]
        end = max(last, default=0) or record.parent.start_time
        record.parent.set_status(self._status, end)
        if self._status in ("FAILED", "KILLED"):
            for child in record.children.values():
                if child.status == "RUNNING":
                    child.set_status(self._status, end)


def _not_yet_logged(parent: Mirror, points: list["Metric"]) -> list["Metric"]:
    """Points without those whose value is known at their step, whenever it was logged."""
    return [point for point in points if (point.step, point.value) not in parent.history(point.key)]
