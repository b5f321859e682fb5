"""Stores that are away, late, wrong or shared, and where a record is to be seen."""

import os
import shutil
import subprocess
import sys

import pytest
import warm
from mlflow import MlflowClient
from mlflow.server.constants import (
    ARTIFACT_ROOT_ENV_VAR,
    ARTIFACTS_DESTINATION_ENV_VAR,
    BACKEND_STORE_URI_ENV_VAR,
    SERVE_ARTIFACTS_ENV_VAR,
)
from recorded_run import (
    held,
    make_run,
    write_prompts,
    write_round,
    write_start,
)
from support import await_server, free_port

from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from tasks.run import create_or_open, round_folder
from tasks.tracking import Tracker


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")


def test_a_store_that_is_away_is_one_sentence_and_made_good_later(tmp_path):
    (tmp_path / "store").write_text("in the way")
    run = make_run(tmp_path, tracking={"uri": f"sqlite:///{tmp_path}/store/mlflow.db"})
    write_prompts(run)
    write_start(run)
    write_round(run, 1)
    tracker = Tracker(run)
    tracker.set_status("RUNNING")
    assert tracker.run_id is None
    assert tracker.sync([1]) == tracker.problem
    assert tracker.problem.endswith(f"rebuild it with: grpo-rounds track {run.uri}")
    assert "\n" not in tracker.problem
    (tmp_path / "store").unlink()
    write_round(run, 2)
    assert tracker.sync([2]) is None  # and the round that it owes
    assert tracker.problem is None
    assert sorted(held(run)) == ["demo", "round-0001", "round-0002"]
    tracker.set_status("FINISHED")
    assert held(run)["demo"]["info"][0] == "FINISHED"


def test_a_status_told_in_vain_is_told_again(tmp_path):
    (tmp_path / "store").write_text("in the way")
    run = make_run(tmp_path, tracking={"uri": f"sqlite:///{tmp_path}/store/mlflow.db"})
    write_start(run)
    tracker = Tracker(run)
    tracker.set_status("FAILED")
    (tmp_path / "store").unlink()
    assert tracker.sync() is None
    assert held(run)["demo"]["info"][0] == "FAILED"


def test_a_server_that_comes_up_late_gets_the_whole_record(warm_process, tmp_path, empty_store):
    port = free_port()
    run = make_run(tmp_path, tracking={"uri": f"http://127.0.0.1:{port}"})
    write_start(run)
    write_prompts(run)
    write_round(run, 1)
    tracker = Tracker(run)
    assert tracker.ui_command == f"http://127.0.0.1:{port}"
    assert "Max retries exceeded" in tracker.sync()

    # MLflow's own server without its command, which takes half a minute to come up on a busy machine.
    shutil.copy(empty_store, tmp_path / "server.db")
    environment = {
        BACKEND_STORE_URI_ENV_VAR: f"sqlite:///{tmp_path}/server.db",
        ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        ARTIFACTS_DESTINATION_ENV_VAR: f"{tmp_path}/artifacts",
        SERVE_ARTIFACTS_ENV_VAR: "true",
    }
    code = f"from mlflow.server import app; app.run('127.0.0.1', {port}, threaded=True)"
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*warm.program(), "python", "-c", code], env=os.environ | environment, stdout=log, stderr=log
        )
    try:
        await_server(f"http://127.0.0.1:{port}/health", server, tmp_path / "server.log")
        assert tracker.sync([]) is None
        before = held(run)
        assert "rollouts_table.json" in before["round-0001"]["files"]
        assert len(before["demo"]["inputs"]) == 2
        assert Tracker(run).sync() is None
        assert held(run) == before
    finally:
        server.kill()
        server.wait()
    assert (tmp_path / "artifacts").is_dir()


@pytest.mark.parametrize(
    "uri", ["mlruns", "file:///mlruns", "sqlite:mlflow.db", "sqlite://", "htp://host", "http://", "http://[x"]
)
def test_an_address_of_no_store_is_refused(tmp_path, uri, monkeypatch):
    run = make_run(tmp_path, tracking={"uri": uri})
    with pytest.raises(UserError, match=r"^tracking\.uri is "):
        Tracker(run)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match=r"^MLFLOW_TRACKING_URI is "):
        Tracker(make_run(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_how_to_look_at_the_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = os.path.join(os.path.dirname(sys.executable), "mlflow")
    run = make_run(tmp_path / "runs")
    assert Tracker(run).ui_command == f"{program} ui --backend-store-uri sqlite:///runs/mlflow.db --port 5000"
    assert Tracker(run).place.artifacts == str(tmp_path / "runs/mlartifacts")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host:1/x")
    assert Tracker(run).ui_command == "https://me:***@host:1/x"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://me:secret@host/x")
    assert "secret" not in Tracker(run).ui_command
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port()}")
    problem = Tracker(run).sync()
    assert "127.0.0.1" in problem
    assert "secret" not in problem
    assert not (tmp_path / "runs/mlflow.db").exists()


def test_a_remote_run_is_mirrored_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = create_or_open(f"memory://{tmp_path.name}/demo", RunConfig(name="demo"))[0]
    write_start(run)
    write_prompts(run)
    write_round(run, 1)
    tracker = Tracker(run)
    assert tracker.sync() is None
    assert (tmp_path / "runs/mlflow.db").exists()
    child = held(run)["round-0001"]["files"]
    assert child["rewards/shard-00001.parquet"] == run.store.read_bytes(round_folder(1, "rewards/shard-00001.parquet"))


def test_a_deleted_experiment_is_told_at_once_but_never_in_the_middle(run):
    tracker = Tracker(run)
    tracker.sync()
    client = MlflowClient(tracking_uri=tracker.place.uri)
    client.delete_experiment(client.get_experiment_by_name("grpo-rounds").experiment_id)
    with pytest.raises(UserError, match=r"tracking\.experiment 'grpo-rounds' was deleted"):
        Tracker(run).sync()
    write_round(run, 3)
    assert "grpo-rounds track" in tracker.sync([3])
    assert "tracking.experiment" in tracker.sync([3])


def test_a_run_deleted_in_mlflow_is_rebuilt(run):
    tracker = Tracker(run)
    tracker.sync()
    MlflowClient(tracking_uri=tracker.place.uri).delete_run(tracker.run_id)
    again = Tracker(run)
    assert again.sync() is None
    assert again.run_id != tracker.run_id


def test_two_runs_of_one_experiment_keep_apart(run, tmp_path):
    Tracker(run).sync()
    other = create_or_open(str(tmp_path / "other"), run.config.model_copy(update={"name": "other"}))[0]
    write_prompts(other)
    write_start(other)
    tracker = Tracker(other)
    tracker.sync()
    assert tracker.run_id != Tracker(run).run_id
    assert sorted(held(run)) == ["demo", "other", "round-0001", "round-0002"]
