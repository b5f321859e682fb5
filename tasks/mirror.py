"""One MLflow run as the mirror of something on disk: every write says the same thing twice without harm."""

import json
import posixpath
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric, Run

    from grpo_core.storage import Store

TABLES_TAG = "mlflow.loggedArtifacts"  # the tag by which MLflow's UI and load_table know tables


class Mirror:
    """A run of MLflow, with what it held when it was read and what has been written since."""

    def __init__(self, client: "MlflowClient", run: "Run") -> None:
        self.client = client
        self.run_id: str = run.info.run_id
        self.name: str | None = run.info.run_name
        self.status: str = run.info.status
        self.start_time: int = run.info.start_time
        self.end_time: int | None = run.info.end_time
        self.tags: dict[str, str] = dict(run.data.tags)
        self.params: dict[str, str] = dict(run.data.params)
        self.metrics: dict[str, float] = dict(run.data.metrics)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            if self.tags.get(key) != value:
                self.client.set_tag(self.run_id, key, value)
                self.tags[key] = value

    def add_params(self, params: Mapping[str, str]) -> None:
        """Set the params that are not there yet; MLflow refuses to change one."""
        from mlflow.entities import Param

        new = [Param(key, value) for key, value in params.items() if key not in self.params]
        for start in range(0, len(new), 100):  # MLflow's limit of one request
            self.client.log_batch(self.run_id, params=new[start : start + 100])
        self.params = {**params, **self.params}

    def log_metrics(self, points: Sequence["Metric"]) -> None:
        """Add points; the same value, timestamp and step is stored once by MLflow itself."""
        for start in range(0, len(points), 500):
            batch = points[start : start + 500]
            self.client.log_batch(self.run_id, metrics=batch)
            self.metrics |= {point.key: point.value for point in batch}

    def history(self, key: str) -> set[tuple[int, float]]:
        """Steps and values of a metric."""
        if key not in self.metrics:
            return set()
        return {(point.step, point.value) for point in self.client.get_metric_history(self.run_id, key)}

    def upload(self, store: "Store", files: Mapping[str, str], label: str, digest: str) -> None:
        """Upload files of a run folder unless a tag says that these very bytes are there.

        Args:
            files: where each goes among the run's artifacts, by its path in the store.
            label: names the tag.
            digest: identity of the files' bytes.
        """
        tag = f"grpo_rounds.uploaded.{label}"
        if self.tags.get(tag) == digest:
            return
        for source, target in files.items():
            with _local(store.serving(source), source) as path:
                self.client.log_artifact(self.run_id, str(path), posixpath.dirname(target) or None)
        self.set_tags({tag: digest})

    def put_file(self, name: str, make: Callable[[], bytes], digest: str) -> None:
        """Put (or replace) one file, made from what ``digest`` stands for, unless it is there already."""
        tag = f"grpo_rounds.uploaded.{name.partition('.')[0]}"
        if self.tags.get(tag) == digest:
            return
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, name)
            path.write_bytes(make())
            self.client.log_artifact(self.run_id, str(path))
        self.set_tags({tag: digest})

    def put_table(self, name: str, make: Callable[[], "pd.DataFrame"], digest: str) -> None:
        """Put (or replace) a table as ``MlflowClient.log_table`` writes it, which by itself would double the rows."""
        known = json.loads(self.tags.get(TABLES_TAG, "[]"))
        entry = {"path": name, "type": "table"}
        self.put_file(name, lambda: as_table_file(make()), digest)
        if entry not in known:
            self.set_tags({TABLES_TAG: json.dumps([*known, entry])})

    def add_inputs(self, inputs: Sequence["DatasetInput"]) -> None:
        """Log the dataset inputs that the run does not have yet."""
        known = self.client.get_run(self.run_id).inputs
        have = {(found.dataset.name, found.dataset.digest) for found in (known.dataset_inputs if known else [])}
        new = [one for one in inputs if (one.dataset.name, one.dataset.digest) not in have]
        if new:
            self.client.log_inputs(self.run_id, new)

    def set_status(self, status: str, end_time: int) -> None:
        """``RUNNING``, or an end (``FINISHED``, ``FAILED``, ``KILLED``) at a time in milliseconds since the epoch."""
        if status == "RUNNING":
            if self.status != status:
                self.client.update_run(self.run_id, status=status)
        elif (self.status, self.end_time) != (status, end_time):
            self.client.set_terminated(self.run_id, status, end_time)
            self.end_time = end_time
        self.status = status

    def rename(self, name: str) -> None:
        if self.name != name:
            self.client.update_run(self.run_id, name=name)
            self.name = name


def as_table_file(table: "pd.DataFrame") -> bytes:
    """A table in the form that ``MlflowClient.log_table`` writes."""
    text: str = table.to_json(orient="split", index=False, date_format="iso")
    return text.encode()


@contextmanager
def _local(store: "Store", relative: str) -> Iterator[Path]:
    """A local file with the bytes of one in the store."""
    if store.is_local:
        yield Path(store.path(relative))
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, posixpath.basename(relative))
        path.write_bytes(store.read_bytes(relative))
        yield path
