"""Where MLflow keeps the record of a run, and how to look at it there."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from grpo_core.errors import UserError
from tasks.run import Run

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True, slots=True)
class Place:
    """An MLflow store. ``artifacts`` is where a new experiment puts its files; None leaves that to the server."""

    uri: str
    artifacts: str | None
    ui_command: str


def place_of(run: Run) -> Place:
    """``tracking.uri``, else MLFLOW_TRACKING_URI, else sqlite beside the run folder (in ``./runs`` for a remote run).

    Nothing is opened or made. Raises UserError when the address can be none of an MLflow store.
    """
    beside = Path(run.store.root).parent if run.store.is_local else Path("runs").absolute()
    key, uri = "tracking.uri", run.config.tracking.uri
    if uri is None:
        key, uri = "MLFLOW_TRACKING_URI", os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}/mlflow.db"
    try:
        parts = urlsplit(uri)
        kind, host = parts.scheme.split("+")[0], parts.hostname
    except ValueError as error:
        raise _refusal(key, uri) from error
    if parts.password:  # stays out of sight
        shown = parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")).geturl()
    else:
        shown = uri
    if kind in ("http", "https") and host:
        return Place(uri, None, shown)
    if kind == "databricks" or uri == "databricks":
        return Place(uri, None, uri)
    if kind not in _DATABASES or not uri.startswith(f"{parts.scheme}://"):
        raise _refusal(key, uri)
    if kind != "sqlite":
        return Place(uri, str(beside / "mlartifacts"), _ui_command(shlex.quote(shown)))
    file = uri.partition(":///")[2].partition("?")[0]
    if not file:
        raise _refusal(key, uri)
    absolute = Path(file).absolute()
    return Place(
        uri, str(absolute.parent / "mlartifacts"), _ui_command(shlex.quote(f"sqlite:///{_short(str(absolute))}"))
    )


def _refusal(key: str, uri: str) -> UserError:
    return UserError(
        f"{key} is '{uri}', which is no address of an MLflow store; give sqlite:///FILE.db, another database's URL, or "
        "a server's http:// or https:// URL."
    )


def _ui_command(store: str) -> str:
    program = Path(sys.executable).with_name("mlflow")
    return f"{shlex.quote(_short(str(program)))} ui --backend-store-uri {store} --port 5000"


def _short(path: str) -> str:
    """The path as seen from the working folder when it lies in there, so that the command is short."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
