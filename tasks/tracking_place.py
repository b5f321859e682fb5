"""Where MLflow keeps the record of a run, and how to look at it there."""

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from grpo_core.config import TrackingConfig
from grpo_core.errors import UserError
from grpo_core.storage import Store

_IS_SECRET = re.compile(r"[^=]*(pass|pwd|token|secret)[^=]*=", re.IGNORECASE)
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True, slots=True)
class Place:
    """An MLflow store. ``artifacts`` is where a new experiment puts its files; None leaves that to the server."""

    uri: str
    artifacts: str | None
    ui_command: str

    @property
    def sqlite_file(self) -> Path | None:
        """The file of an sqlite store; None where it is another kind, or a memory."""
        file = self.uri.partition(":///")[2].partition("?")[0] if self.uri.startswith("sqlite") else ""
        return Path(file).absolute() if file and file != ":memory:" else None

    def redact(self, text: str) -> str:
        """The text without the address's passwords: the one before its host, and those among its parameters."""
        parts = urlsplit(self.uri)
        given = [parts.password, *(pair.partition("=")[2] for pair in parts.query.split("&") if _IS_SECRET.match(pair))]
        for password in filter(None, given):
            text = text.replace(password, "***")
        return text

    def reason(self, error: Exception) -> str:
        """What a store that failed says, as a part of a sentence without passwords."""
        said = self.redact(str(error).strip() or type(error).__name__)  # before it is cut, maybe inside of one
        return said.splitlines()[0][:200].rstrip(".")


def place_of(run_uri: str, config: TrackingConfig) -> Place:
    """``tracking.uri``, else MLFLOW_TRACKING_URI, else sqlite beside the run folder (in ``./runs`` for a remote run).

    Nothing is opened or made. Raises UserError when the address can be none of an MLflow store.
    """
    store = Store(run_uri)
    beside = Path(store.root).parent if store.is_local else Path("runs").absolute()
    key, uri = "tracking.uri", config.uri
    if uri is None:
        key, uri = "MLFLOW_TRACKING_URI", os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}/mlflow.db"
    try:
        parts = urlsplit(uri)
        kind, host = parts.scheme.split("+")[0], parts.hostname
    except ValueError as error:
        raise _refusal(key, uri) from error
    shown = Place(uri, None, "").redact(uri)
    if kind in ("http", "https") and host:
        return Place(uri, None, shown)
    if kind == "databricks" or uri == "databricks":
        return Place(uri, None, uri)
    if kind not in _DATABASES or not uri.startswith(f"{parts.scheme}://"):
        raise _refusal(key, uri)
    if kind != "sqlite":
        return Place(uri, str(beside / "mlartifacts"), _ui_command(shlex.quote(shown)))
    absolute = Place(uri, None, "").sqlite_file
    if absolute is None:
        raise _refusal(key, uri)
    return Place(
        uri, str(absolute.parent / "mlartifacts"), _ui_command(shlex.quote(f"sqlite:///{_short(str(absolute))}"))
    )


def _refusal(key: str, uri: str) -> UserError:
    told = re.sub(r"(:/*).*@", r"\1***@", uri).partition("?")[0]  # in what is no address, a password may stand anywhere
    return UserError(
        f"{key} is '{told}', which is no address of an MLflow store; give sqlite:///FILE.db, another database's URL, "
        "or a server's http:// or https:// URL."
    )


def _ui_command(store: str) -> str:
    program = Path(sys.executable).with_name("mlflow")
    return f"{shlex.quote(_short(str(program)))} ui --backend-store-uri {store} --port 5000"


def _short(path: str) -> str:
    """The path as seen from the working folder when it lies in there, so that the command is short."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
