"""Settings that must stand in the environment before Prefect, MLflow or torch are imported."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_DEFAULTS = {
    # Telemetry is off unless the user has said otherwise.
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A restart of the server must not kill a healthy run that holds a concurrency slot.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # A loaded machine takes longer than Prefect's 20 seconds to start the temporary server.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # A flow run that has been silent for three of these is taken for dead (deployments/automations.py).
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # Tokenisers fork nothing here; the warning would break the progress display.
    "TOKENIZERS_PARALLELISM": "false",
}

# On the command line our own table speaks; under a worker Prefect's log does.
_COMMAND_LINE = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


def prepare(command_line: bool = False) -> None:
    """Set the defaults where the environment says nothing."""
    for name, value in (_DEFAULTS | (_COMMAND_LINE if command_line else {})).items():
        os.environ.setdefault(name, value)


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Inside, half a million objects come to stay: no search for garbage among them, now or later.

    The searches take a fifth of the time of the imports, and half a second each time that a stage frees its model.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def for_workers() -> dict[str, str]:
    """What a process that a worker starts has to find in its environment; it begins with Prefect, not with us."""
    return {name: os.environ.get(name, value) for name, value in _DEFAULTS.items()}


def speak() -> None:
    """Take back the silence of the command line, before Prefect is imported: what is served has no table of its own."""
    for name, value in _COMMAND_LINE.items():
        if os.environ.get(name) == value:
            del os.environ[name]
