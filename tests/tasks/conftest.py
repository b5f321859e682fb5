"""What the tests of MLflow's record share."""

import shutil
from pathlib import Path

import pytest
import stores
from mlflow import MlflowClient
from recorded_run import make_run, write_evaluation, write_prompts, write_round, write_start

from tasks.run import Run


@pytest.fixture(scope="session", autouse=True)
def copied_tables() -> None:
    """MLflow's tables from a copy here too."""
    stores.copy_tables()


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all its tables and nothing in them: making one takes more than a second."""
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def run(tmp_path: Path, empty_store: Path) -> Run:
    """Two rounds and an evaluation before and after."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    made = make_run(tmp_path)
    write_start(made)
    write_prompts(made)
    write_round(made, 1)
    write_round(made, 2)
    write_evaluation(made, 2, 0.75)
    return made
