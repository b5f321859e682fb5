"""The connection to an MLflow store: find or make what belongs to a run, and know the ways in which a store fails."""

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grpo_core.errors import UserError
from tasks.mirror import Mirror
from tasks.run import IDENTITY, Run
from tasks.tracking_facts import milliseconds
from tasks.tracking_place import Place

if TYPE_CHECKING:
    from mlflow import MlflowClient

# A server that does not answer must not hold up training for minutes; an address may hold a password.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def _settle() -> None:
    """Set what MLflow reads of the environment; what the user has set stays."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


_settle()  # before MLflow is imported

RUN_TAG = "grpo_rounds.run"
ROUND_TAG = "grpo_rounds.round"


@dataclass(slots=True)
class Record:
    """What MLflow holds of this run."""

    client: "MlflowClient"
    experiment_id: str
    parent: Mirror
    children: dict[int, Mirror]

    def child(self, number: int, start_time: int) -> Mirror:
        """The run of a round, made when there is none yet."""
        if number not in self.children:
            tags = {"mlflow.parentRunId": self.parent.run_id, ROUND_TAG: str(number)}
            name = f"round-{number:04d}"
            made = self.client.create_run(self.experiment_id, start_time=start_time, tags=tags, run_name=name)
            self.children[number] = Mirror(self.client, made)
        return self.children[number]


def connect(run: Run, place: Place) -> Record:
    """Find what MLflow holds of a run by its identity; make the experiment and the parent run when they are missing.

    Raises:
        UserError: a driver is missing or the experiment was deleted.
        Exception: one of ``store_failures()``.
    """
    _settle()  # again: a process that was forked may have another environment by now
    from mlflow import MlflowClient

    uri, name = place.uri, run.config.tracking.experiment
    _make_sqlite_whole(place)
    try:
        client = MlflowClient(tracking_uri=uri)
    except ImportError as error:
        raise UserError(f"tracking.uri needs a driver that is not installed ({error}); pip install it.") from error
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        experiment_id = client.create_experiment(name, artifact_location=place.artifacts)
    elif experiment.lifecycle_stage == "deleted":
        raise UserError(
            f"tracking.experiment '{name}' was deleted in MLflow; choose another name or bring it back with: "
            f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
        )
    else:
        experiment_id = experiment.experiment_id
    parent = next(_search(client, experiment_id, RUN_TAG, run.identity), None)
    if parent is None:
        created_at = json.loads(run.store.read_bytes(IDENTITY))["created_at"]
        tags = {RUN_TAG: run.identity, "mlflow.source.name": "grpo-rounds", "mlflow.source.type": "LOCAL"}
        # One request with its tags: a kill leaves a run that can be found, or none.
        made = client.create_run(
            experiment_id, start_time=milliseconds(created_at), tags=tags, run_name=run.config.name
        )  # fmt: skip
        parent = Mirror(client, made)
    children: dict[int, Mirror] = {}
    for child in _search(client, experiment_id, "mlflow.parentRunId", parent.run_id):
        if ROUND_TAG in child.tags:
            children.setdefault(int(child.tags[ROUND_TAG]), child)
    return Record(client, experiment_id, parent, children)


def _make_sqlite_whole(place: Place) -> None:
    """Make the tables of a new sqlite store under another name and put it in place at once.

    MLflow makes them in some hundred steps. A kill in between would leave a file that it can neither read nor mend.
    """
    file = place.sqlite_file
    if file is None or file.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=file.parent, ignore_cleanup_errors=True) as scratch:
        new = Path(scratch, file.name)
        make: Any = SqlAlchemyStore  # MLflow leaves it untyped
        store = make(f"sqlite:///{new}", place.artifacts or str(file.parent / "mlartifacts"))
        store.engine.dispose()
        with suppress(FileExistsError):  # another run beside this one was faster
            os.link(new, file)


def _search(client: "MlflowClient", experiment_id: str, tag: str, value: str) -> Iterator[Mirror]:
    """Runs with this tag, the oldest first."""
    token = None
    while True:
        page = client.search_runs(
            [experiment_id], f"tags.{tag} = '{value}'", order_by=["attributes.start_time ASC"], page_token=token
        )
        yield from (Mirror(client, run) for run in page)
        token = page.token
        if not token:
            return


def store_failures() -> tuple[type[Exception], ...]:
    """What a store that is away, full, locked or broken raises; OSError covers requests' errors, too."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError
    from urllib3.exceptions import HTTPError

    return (MlflowException, SQLAlchemyError, CommandError, HTTPError, OSError, pa.ArrowException)


@contextmanager
def quiet() -> Iterator[None]:
    """No chatter of libraries between the rows of our own table."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "urllib3.connectionpool", "matplotlib")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
