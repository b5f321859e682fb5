"""MLflow's and Prefect's tables from a copy: making them anew takes seconds of migrations each time."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

TEMPLATES = "GRPO_ROUNDS_TEST_TEMPLATES"  # the folder that all processes of one test session share


@contextmanager
def templates() -> Iterator[None]:
    """Have that folder; the outermost makes it, and removes it at the end."""
    if TEMPLATES in os.environ:
        yield
        return
    folder = os.environ[TEMPLATES] = tempfile.mkdtemp(prefix="grpo-rounds-templates-")
    try:
        yield
    finally:
        del os.environ[TEMPLATES]
        shutil.rmtree(folder)


def copy_tables() -> None:
    """Have MLflow in this process and its forks copy the tables of a new sqlite store; the first one makes them."""
    from mlflow.store.db import utils

    make = utils._initialize_tables
    if make.__module__ == __name__:  # done already
        return

    def initialize(engine: Any) -> None:
        folder, file = os.environ.get(TEMPLATES), engine.url.database
        if not folder or engine.dialect.name != "sqlite" or not file or not utils._is_empty_database(engine):
            make(engine)
            return
        template = Path(folder, "mlflow.db")
        with FileLock(f"{template}.lock"):
            if not template.exists():
                make(engine)
                _keep(Path(file), template)
                return
        engine.dispose()
        _copy(template, Path(file))

    utils._initialize_tables = initialize


def copy_prefect(home: Path) -> None:
    """Give a Prefect server that has no database yet one with all its tables, where another server kept that."""
    template = Path(os.environ.get(TEMPLATES, os.devnull), "prefect.db")
    if template.exists() and not (home / "prefect.db").exists():
        _copy(template, home / "prefect.db")


def keep_prefect(home: Path) -> None:
    """Keep the database of a server that has just come up, where none is kept yet."""
    folder = os.environ.get(TEMPLATES)
    if folder and not Path(folder, "prefect.db").exists():
        _keep(home / "prefect.db", Path(folder, "prefect.db"))


def _keep(made: Path, template: Path) -> None:
    new = template.with_suffix(f".{os.getpid()}")
    _copy(made, new)
    os.rename(new, template)


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
