import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.server.constants import (
    ARTIFACT_ROOT_ENV_VAR,
    ARTIFACTS_DESTINATION_ENV_VAR,
    BACKEND_STORE_URI_ENV_VAR,
    SERVE_ARTIFACTS_ENV_VAR,
)

from grpo_core.artifacts import ArtifactWriter, Fingerprint
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from grpo_core.schemas import ADVANTAGES, EVALUATION, PLAN, PROMPTS, REJECTED, REWARDS, ROLLOUTS, rollout_id
from tasks.learning_curve import learning_curve
from tasks.rollout_table import rollout_table
from tasks.run import Run, create_or_open, open_run, round_folder
from tasks.tracking import Tracker
from tasks.tracking_facts import metric_points, read_round

G = 4
PROMPT_IDS = [f"p{number}" for number in range(6)]
ROUND = ("plan.parquet", "rollouts", "rewards", "advantages", "policy")
WRITES = (
    "create_experiment",
    "create_run",
    "set_tag",
    "log_batch",
    "log_artifact",
    "log_inputs",
    "set_terminated",
    "update_run",
)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")


def make_run(folder: Path, **config: Any) -> Run:
    tracking = {"table_rows": 2 * G} | config.pop("tracking", {})
    values = {"name": "demo", "seed": 3, "rounds": 3, "tracking": tracking} | config
    return create_or_open(str(folder / "demo"), RunConfig.model_validate(values))[0]


def write(run: Run, location: str, stage: str, number: int, tables: dict[str, pa.Table], metrics: dict) -> None:
    writer = ArtifactWriter(run.artifact(location), Fingerprint(stage, number, 1, {}, {}))
    for name, table in tables.items():
        writer.write_table(name, table)
    writer.finish(metrics)


def write_prompts(run: Run) -> None:
    def prompts(ids: Sequence[str]) -> pa.Table:
        rows = [
            {"prompt_id": i, "source": "s", "source_row": n, "prompt": f"What is {i}?", "gold": "1", "prompt_ids": [1]}
            for n, i in enumerate(ids)
        ]
        return pa.Table.from_pylist(rows, schema=PROMPTS)

    rejected = [
        {"source": "s", "source_row": n, "prompt": None, "gold": None, "reason": reason, "detail": "d"}
        for n, reason in enumerate(["no_gold", "duplicate", "no_gold"])
    ]
    tables = {
        "train.parquet": prompts(PROMPT_IDS),
        "eval.parquet": prompts(["e0", "e1"]),
        "rejected.parquet": pa.Table.from_pylist(rejected, schema=REJECTED),
    }
    write(run, "prompts", "filter_prompts", 0, tables, {"train": 6.0, "eval": 2.0, "rejected_no_gold": 2.0})


def write_start(run: Run) -> None:
    write(run, round_folder(0, "policy"), "initial_policy", 0, {}, {"parameters": 12.0})
    write_evaluation(run, 0, 0.25)


def write_evaluation(run: Run, number: int, accuracy: float) -> None:
    rows = [
        {"prompt_id": "e0", "mode": "greedy", "sample_index": 0, "completion_ids": [5], "text": "1"}
        | {"finish_reason": "stop", "verdict": "ok", "extracted": "1", "gold": "1", "reward": 1.0}
    ]
    table = pa.Table.from_pylist(rows, schema=EVALUATION)
    metrics = {"accuracy": accuracy, "accuracy_stderr": 0.1, "pass@2": 0.5}
    write(run, round_folder(number, "evaluation"), "evaluate_policy", number, {"evaluation.parquet": table}, metrics)


def write_round(run: Run, number: int, parts: Sequence[str] = ROUND, **policy_metrics: float) -> None:
    """A round of two shards of three groups; sample 0 is right, sample 3 has no reward."""
    keys = [
        {"rollout_id": rollout_id(number, p, i), "round": number, "prompt_id": p, "sample_index": i}
        for p in PROMPT_IDS
        for i in range(G)
    ]
    sampling = {"seed": 2**64 - 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 9}
    engine = {"policy_digest": "d", "engine": "e", "engine_version": "1"}
    rollouts = [
        key
        | {"prompt_ids": [1], "completion_ids": [7] * (key["sample_index"] + 1), "finish_reason": "stop"}
        | {"logprobs": [-0.5] * (key["sample_index"] + 1), "text": f"\\boxed{{{key['sample_index']}}} é"}
        | sampling
        | engine
        for key in keys
    ]
    rewards = [
        key
        | {"verdict": ["ok", "wrong", "unparsable", "timeout"][key["sample_index"]]}
        | {"extracted": ["1", "2", None, None][key["sample_index"]], "gold": "1", "components": [("correct", 1.0)]}
        | {"reward": [1.0, 0.0, 0.0, None][key["sample_index"]], "detail": ""}
        for key in keys
    ]
    advantages = [
        key
        | {"reward": [1.0, 0.0, 0.0, None][key["sample_index"]], "group_size": G, "group_valid": 3}
        | {"group_mean": 1 / 3, "group_std": 0.5, "zero_variance": False}
        | {"advantage": [1.25, -0.75, -0.75, 0.0][key["sample_index"]], "in_loss": key["sample_index"] < 3}
        for key in keys
    ]
    columns = {"epoch": 0, "turn": "epoch", "reserve": False}
    plan = [{"position": n, "prompt_id": p, **columns} for n, p in enumerate(PROMPT_IDS)]

    def shards(rows: list[dict], schema: pa.Schema) -> dict[str, pa.Table]:
        table = pa.Table.from_pylist(rows, schema=schema)
        return {"shard-00000.parquet": table.slice(0, 3 * G), "shard-00001.parquet": table.slice(3 * G)}

    made = {
        "plan.parquet": ("plan_round", {"plan.parquet": pa.Table.from_pylist(plan, schema=PLAN)}, {"epoch": 0.0}),
        "rollouts": ("generate_rollouts", shards(rollouts, ROLLOUTS), {"completion_length_mean": 2.5}),
        "rewards": ("score_rewards", shards(rewards, REWARDS), {"accuracy": number / 4, "reward_mean": number / 3}),
        "advantages": ("compute_advantages", shards(advantages, ADVANTAGES), {"zero_variance_share": 0.5}),
        "policy": ("update_policy", {}, {"kl": 0.01 * number, "entropy": 1.0} | policy_metrics),
    }
    for name in parts:
        stage, tables, metrics = made[name]
        write(run, round_folder(number, name), stage, number, tables, metrics)


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


def held(run: Run, uri: str | None = None) -> dict[str, Any]:
    """All that MLflow holds, by run name and free of the ids that it makes up itself."""
    client = MlflowClient(tracking_uri=uri or Tracker(run).place.uri)
    experiment = client.get_experiment_by_name(run.config.tracking.experiment)
    runs = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    names = {found.info.run_id: found.info.run_name for found in runs}
    assert len(set(names.values())) == len(runs), names
    holdings = {}
    for found in runs:
        identity, tags = found.info.run_id, dict(found.data.tags)
        if "mlflow.parentRunId" in tags:
            tags["mlflow.parentRunId"] = names[tags["mlflow.parentRunId"]]
        history = {key: client.get_metric_history(identity, key) for key in found.data.metrics}
        holdings[found.info.run_name] = {
            "info": (found.info.status, found.info.start_time, found.info.end_time, found.info.lifecycle_stage),
            "tags": tags,
            "params": found.data.params,
            "metrics": {k: sorted((m.step, m.timestamp, m.value) for m in points) for k, points in history.items()},
            "inputs": sorted(
                (one.dataset.name, one.dataset.digest, *sorted((tag.key, tag.value) for tag in one.tags))
                for one in found.inputs.dataset_inputs
            ),
            "files": dict(files(client, identity)),
        }
    return holdings


def files(client: MlflowClient, run_id: str, folder: str = "") -> Iterator[tuple[str, bytes]]:
    for found in client.list_artifacts(run_id, folder):
        if found.is_dir:
            yield from files(client, run_id, found.path)
        else:
            yield found.path, Path(client.download_artifacts(run_id, found.path)).read_bytes()


def test_everything_is_there(run):
    tracker = Tracker(run)
    assert tracker.sync() is None
    tracker.set_status("FINISHED")
    record = held(run)
    assert sorted(record) == ["demo", "round-0001", "round-0002"]
    parent, child = record["demo"], record["round-0002"]
    manifest = run.artifact(round_folder(2, "evaluation")).manifest()

    assert parent["tags"]["grpo_rounds.run"] == run.identity
    assert child["tags"]["mlflow.parentRunId"] == "demo"
    assert (child["tags"]["grpo_rounds.round"], child["info"][0], parent["info"][0]) == ("2", "FINISHED", "FINISHED")
    assert child["info"][2] == parent["info"][2] == int(manifest.finished_at * 1000)

    assert parent["params"]["tracking.table_rows"] == "8"
    assert (parent["params"]["name"], parent["params"]["tracking.uri"]) == ("demo", "null")
    assert parent["files"]["config.yaml"] == run.store.read_bytes("config.yaml")

    assert [(step, value) for step, _, value in parent["metrics"]["eval/accuracy"]] == [(0, 0.25), (2, 0.75)]
    assert [(step, value) for step, _, value in parent["metrics"]["update/kl"]] == [(1, 0.01), (2, 0.02)]
    assert parent["metrics"]["model/parameters"][0][2] == 12
    assert parent["metrics"]["prompts/rejected_no_gold"][0][2] == 2
    assert child["metrics"]["eval/pass_at_2"] == [(2, int(manifest.finished_at * 1000), 0.5)]
    expected = {"reward/accuracy", "reward/reward_mean", "rollout/completion_length_mean", "update/entropy"}
    assert expected | {"advantage/zero_variance_share", "plan/epoch"} < set(child["metrics"]) & set(parent["metrics"])
    seconds = json.loads(run.store.read_bytes(round_folder(2, "rollouts/timings.json")))["seconds"]
    assert child["metrics"]["seconds/generate_rollouts"][0][2] == seconds > 0

    digests = {name: record.sha256 for name, record in run.artifact("prompts").manifest().files.items()}
    assert [(name, digest) for name, digest, *_ in parent["inputs"]] == [
        ("additions:eval", digests["eval.parquet"][:36]),
        ("additions:train", digests["train.parquet"][:36]),
    ]
    assert ("mlflow.data.context", "evaluation") in parent["inputs"][0]
    assert ("mlflow.data.context", "training") in parent["inputs"][1]

    for name in ("train", "eval", "rejected"):
        assert parent["files"][f"prompts/{name}.parquet"] == run.store.read_bytes(f"prompts/{name}.parquet")
    assert parent["files"]["learning_curve.png"] == learning_curve(run)
    assert parent["files"]["evaluation/evaluation.parquet"]
    shards = [f"{part}/shard-0000{n}.parquet" for part in ("rollouts", "rewards", "advantages") for n in range(2)]
    tables = [*shards, "plan.parquet", "evaluation/evaluation.parquet"]
    assert sorted(child["files"]) == sorted([*tables, "rollouts_table.json", "report.html"])
    for name in tables:
        assert child["files"][name] == run.store.read_bytes(round_folder(2, name)), name


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    for name in WRITES:
        real = getattr(MlflowClient, name)

        def counted(self, *args, _name=name, _real=real, **kwargs):
            calls.append(_name)
            return _real(self, *args, **kwargs)

        monkeypatch.setattr(MlflowClient, name, counted)
    return calls


def test_again_and_in_another_process_adds_nothing(run, monkeypatch):
    tracker = Tracker(run)
    tracker.sync()
    tracker.set_status("FINISHED")
    before = held(run)
    calls = count_writes(monkeypatch)
    tracker.sync()
    tracker.sync([1, 2])
    again = Tracker(open_run(run.uri))
    again.sync()
    again.set_status("FINISHED")
    assert again.run_id == tracker.run_id
    assert calls == []
    code = (
        "import sys; from tasks.run import open_run; from tasks.tracking import Tracker\n"
        "tracker = Tracker(open_run(sys.argv[1])); tracker.sync(); tracker.set_status('FINISHED')\n"
        "print(tracker.run_id)"
    )
    done = subprocess.run([sys.executable, "-c", code, run.uri], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (tracker.run_id, "")
    assert held(run) == before


def test_deaths_between_writes_are_made_good(run, tmp_path, monkeypatch):
    elsewhere = run.config.tracking.model_copy(update={"uri": f"sqlite:///{tmp_path}/calm/mlflow.db"})
    calm = Run(run.uri, run.config.model_copy(update={"tracking": elsewhere}))
    tracker = Tracker(calm)
    tracker.set_status("RUNNING")
    tracker.sync()
    tracker.set_status("FINISHED")
    expected = held(calm)

    left = 0
    for name in WRITES:
        real = getattr(MlflowClient, name)

        def dies_after_the_last(self, *args, _real=real, **kwargs):
            nonlocal left
            made = _real(self, *args, **kwargs)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return made

        monkeypatch.setattr(MlflowClient, name, dies_after_the_last)
    for deaths in range(1000):
        left = 1 + deaths % 6  # a group of files that belong together goes up in one life
        tracker = Tracker(run)
        with contextlib.suppress(KeyboardInterrupt):
            tracker.sync()
            tracker.set_status("FINISHED")
            break
    assert 15 < deaths < 999
    found = held(run)
    # The two differ in nothing but the setting that sent them to two places.
    for record, value in ((expected, elsewhere.uri), (found, "null")):
        assert record["demo"]["params"].pop("tracking.uri") == value
    assert found == expected


def test_a_round_in_the_making_is_completed_later(run):
    write_round(run, 3, parts=["plan.parquet", "rollouts"])
    tracker = Tracker(run)
    tracker.sync([3])
    tracker.set_status("KILLED")
    record = held(run)
    assert sorted(record) == ["demo", "round-0003"]
    half = record["round-0003"]
    assert half["info"][0] == record["demo"]["info"][0] == "KILLED"
    assert "rollouts_table.json" not in half["files"]
    assert "update/kl" not in half["metrics"]

    write_round(run, 3, parts=["rewards", "advantages", "policy"])
    resumed = Tracker(open_run(run.uri))
    resumed.set_status("RUNNING")
    resumed.sync()
    record = held(run)
    assert sorted(record) == ["demo", "round-0001", "round-0002", "round-0003"]
    whole = record["round-0003"]
    assert (whole["info"][0], record["demo"]["info"][0]) == ("FINISHED", "RUNNING")
    assert "rollouts_table.json" in whole["files"]
    assert all(len(points) == 1 for points in whole["metrics"].values())
    for points in record["demo"]["metrics"].values():
        assert len({step for step, *_ in points}) == len(points)


def test_a_stage_made_again_with_the_same_values_adds_no_point(run):
    Tracker(run).sync()
    for number, accuracy in ((0, 0.25), (2, 0.75)):
        before = run.artifact(round_folder(number, "evaluation")).manifest()
        time.sleep(0.01)
        write_evaluation(run, number, accuracy)
        assert run.artifact(round_folder(number, "evaluation")).manifest().finished_at > before.finished_at
    Tracker(run).sync()
    record = held(run)
    assert [step for step, *_ in record["demo"]["metrics"]["eval/accuracy"]] == [0, 2]
    assert len(record["round-0002"]["metrics"]["eval/accuracy"]) == 1


def test_non_finite_values_are_dropped_and_counted(run):
    write_round(run, 3, grad_norm=float("inf"), loss=float("nan"))
    Tracker(run).sync()
    record = held(run)
    for name in ("demo", "round-0003"):
        metrics = record[name]["metrics"]
        assert not {"update/grad_norm", "update/loss"} & set(metrics)
        assert [(step, value) for step, _, value in metrics["nonfinite_dropped"]] == [(3, 2.0)]


def test_free_keys_may_change_and_show_as_tags(run):
    Tracker(run).sync()
    more = make_run(Path(run.uri).parent, rounds=9, name="demo")
    Tracker(more).sync()
    parent = held(more)["demo"]
    assert (parent["params"]["rounds"], parent["tags"]["config.rounds"]) == ("3", "9")
    assert [key for key in parent["tags"] if key.startswith("config.")] == ["config.rounds"]
    assert parent["files"]["config.yaml"] == run.store.read_bytes("config.yaml")
    Tracker(run).sync()
    assert held(run)["demo"]["tags"]["config.rounds"] == "3"


def test_long_values_are_no_params(run):
    long = run.config.tracking.model_copy(update={"experiment": "x" * 501})
    from tasks.tracking_facts import params_of

    params = params_of(run.config.model_copy(update={"tracking": long}))
    assert "tracking.experiment" not in params
    assert params["tracking.table_rows"] == "8"


def test_the_table_is_what_log_table_would_write(run, monkeypatch):
    tracker = Tracker(run)
    tracker.sync()
    client = MlflowClient(tracking_uri=tracker.place.uri)
    experiment = client.get_experiment_by_name("grpo-rounds").experiment_id
    child = next(found for found in client.search_runs([experiment]) if found.info.run_name == "round-0001")
    other = client.create_run(experiment)
    client.log_table(other.info.run_id, rollout_table(run, 1, 2 * G), "rollouts_table.json")
    ours, theirs = (dict(files(client, one.info.run_id))["rollouts_table.json"] for one in (child, other))
    assert ours == theirs
    tags = [client.get_run(one.info.run_id).data.tags["mlflow.loggedArtifacts"] for one in (child, other)]
    assert tags[0] == tags[1]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.place.uri)
    table = client.load_table(experiment, "rollouts_table.json", run_ids=[child.info.run_id])
    assert len(table) == 2 * G
    assert table["advantage"].tolist() == [1.25, -0.75, -0.75, 0.0] * 2
    assert table["completion_length"].tolist() == [1, 2, 3, 4] * 2
    assert table["verdict"].tolist() == ["ok", "wrong", "unparsable", "timeout"] * 2
    assert np.isnan(table["reward"][3])
    assert table["completion"][1] == "\\boxed{1} é"
    prompts = [f"What is {one.split('/')[1]}?" for one in table["rollout_id"]]
    assert table["prompt"].tolist() == prompts

    reasons = client.load_table(experiment, "rejected_reasons.json", run_ids=[tracker.run_id])
    assert dict(zip(reasons["reason"], reasons["rows"], strict=True)) == {"duplicate": 1, "no_gold": 2}


@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (G, 1), (2 * G - 1, 1), (3 * G, 3), (1000, 6)])
def test_the_table_takes_whole_groups(run, rows, groups):
    table = rollout_table(run, 1, rows)
    prompt_ids = [one.split("/")[1] for one in table["rollout_id"]]
    assert len(table) == groups * G
    assert {prompt_ids.count(one) for one in prompt_ids} == {G}


def test_other_rounds_show_other_groups(run):
    chosen = []
    for number in range(1, 3):
        chosen.append(sorted({one.split("/")[1] for one in rollout_table(run, number, 2 * G)["rollout_id"]}))
    assert chosen[0] != chosen[1]


def test_no_table_is_made_when_none_is_wanted(tmp_path):
    run = make_run(tmp_path, tracking={"table_rows": 0})
    write_prompts(run)
    write_round(run, 1)
    Tracker(run).sync()
    assert "rollouts_table.json" not in held(run)["round-0001"]["files"]


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


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_server_that_comes_up_late_gets_the_whole_record(tmp_path, empty_store):
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
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([sys.executable, "-c", code], env=os.environ | environment, **quiet)
    while server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            break
        time.sleep(0.2)
    try:
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


def test_the_curve_follows_the_rounds(run):
    tracker = Tracker(run)
    tracker.sync()
    before = held(run)["demo"]["files"]["learning_curve.png"]
    assert before == learning_curve(run)
    assert before.startswith(b"\x89PNG")
    write_round(run, 3, entropy=float("nan"))
    tracker.sync([3])
    after = held(run)["demo"]["files"]["learning_curve.png"]
    assert after == learning_curve(run) != before


def test_the_curve_of_a_run_that_has_only_begun(tmp_path):
    run = make_run(tmp_path)
    nothing = learning_curve(run)
    write_start(run)
    assert learning_curve(run) != nothing


def test_reward_up_while_held_out_accuracy_stands_still_is_a_metric_of_the_round(tmp_path: Path) -> None:
    run = make_run(tmp_path, evaluation={"every": 1})
    for number, accuracy in ((0, 0.25), (1, None), (2, 0.75), (3, 0.25)):
        if number:
            write_round(run, number)
        if accuracy is not None:
            write_evaluation(run, number, accuracy)
    points = {p.key: (p.step, p.value) for p in metric_points(read_round(run, 3)) if p.key.startswith("monitor/")}
    # Evaluated at 0, 2 and 3 as 0.25, 0.75, 0.25; rewards of rounds 1 to 3 are 1/3, 2/3, 1.
    assert points == {
        "monitor/reward_rise": (3, pytest.approx(1.0)),
        "monitor/heldout_rise": (3, pytest.approx(3 * 0.25 / 7)),
        "monitor/reward_up_heldout_flat": (3, 0.0),
    }
    assert read_round(run, 2).trend == {}  # two evaluations are no trend
    before = read_round(run, 3).digest
    write_evaluation(run, 2, 0.25)
    assert read_round(run, 3).trend["reward_up_heldout_flat"] == 1.0
    assert read_round(run, 3).digest != before


# -- gates --


def test_what_gates_did_is_a_tag_a_file_and_metrics_also_after_a_stop(run: Run) -> None:
    def gates(number: int, action: str) -> None:
        finding = {"gate": "kl", "action": action, "reason": "KL is 2, above gates.kl 1"}
        text = json.dumps({"findings": [finding]}).encode()
        writer = ArtifactWriter(
            run.artifact(round_folder(number, "gates")), Fingerprint("apply_gates", number, 1, {}, {})
        )
        writer.write_folder(lambda folder: (folder / "gates.json").write_bytes(text) and None)
        if action != "stop":
            writer.finish({"learning_rate_factor": 0.5})

    def round_run(number: int) -> Any:
        client = MlflowClient(Tracker(run).place.uri)
        experiment = client.get_experiment_by_name(run.config.tracking.experiment)
        found = client.search_runs([experiment.experiment_id], f"tags.grpo_rounds.round = '{number}'")
        return found[0]

    tracker = Tracker(run)
    gates(1, "lower_lr")
    write_round(run, 3, ("plan.parquet", "rollouts"))
    gates(3, "stop")
    assert tracker.sync() is None
    first = round_run(1)
    assert first.data.tags["grpo_rounds.gates"] == "kl (lower_lr): KL is 2, above gates.kl 1"
    assert first.data.metrics["gate/learning_rate_factor"] == 0.5
    assert "gates/gates.json" in dict(files(MlflowClient(tracker.place.uri), first.info.run_id))
    assert round_run(3).data.tags["grpo_rounds.gates"] == "kl (stop): KL is 2, above gates.kl 1"
    assert "grpo_rounds.gates" not in round_run(2).data.tags
    gates(3, "warn")
    assert tracker.sync([3]) is None
    assert round_run(3).data.tags["grpo_rounds.gates"] == "kl (warn): KL is 2, above gates.kl 1"
