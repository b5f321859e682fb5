"""Trouble from outside: a full or read-only disk, servers that are gone, SIGTERM. One sentence, and resume works."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import warm
from launcher import Launcher
from support import ROOT, TINY, digests, in_prefect, mlflow_record, prefect_server

from grpo_core.artifacts import Manifest

PROGRAM = Path(sys.executable).parent / "grpo-rounds"

as_root = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["mount", "--version"], capture_output=True).returncode != 0,
    reason="mounting a small file system needs root",
)


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a real tmpfs of so many KiB; skips where the machine does not let root mount."""
    mounted = []

    def mount(kib: int) -> Path:
        folder = tmp_path / f"disk{kib}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", folder], capture_output=True)
        if done.returncode:
            pytest.skip(f"can't mount a tmpfs: {done.stderr.decode().strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def one_round(finished_run: Path, tmp_path: Path) -> Path:
    """The tiny run with its second round still to be done, as a run of its own of which no server knows yet."""
    run = tmp_path / "one/run"
    shutil.copytree(finished_run, run)
    shutil.rmtree(run / "rounds/0002")
    identity = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(identity | {"run_id": uuid4().hex}))
    return run


def one_sentence(done: subprocess.CompletedProcess[str], *named: str) -> None:
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for name in named:
        assert name in sentence, sentence


@as_root
@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_no_half_artifact_and_more_room_is_enough(command, finished_run, small_disk):
    weights = (finished_run / "rounds/0001/policy/model.safetensors").stat().st_size // 1024
    disk = small_disk(weights * 4)  # the starting policy and the checkpoints fit, the round's models do not
    run = disk / "run"
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{disk.parent}/mlflow.db"}
    full = command("train", TINY, "--run-dir", run, **store)
    one_sentence(full, "No space left on device", str(run))
    for manifest in run.rglob("manifest.json"):
        told = json.loads(manifest.read_bytes())
        assert all((manifest.parent / name).stat().st_size == file["size"] for name, file in told["files"].items())
    assert list(run.rglob(".tmp-*")) == []
    subprocess.run(["mount", "-o", f"remount,size={weights * 40}k", disk], check=True)
    assert command("resume", run, **store).returncode == 0
    assert digests(run) == digests(finished_run)


@as_root
def test_a_read_only_folder_is_one_sentence(command, finished_run, small_disk):
    disk = small_disk(65536)
    shutil.copytree(finished_run, disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    one_sentence(command("resume", disk / "run"), str(disk / "run"), "can't be written")


@pytest.mark.slow
def test_mlflow_down_fails_no_stage_and_track_makes_up_for_it(command, finished_run, tmp_path):
    run = tmp_path / "run"
    down = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = command("train", TINY, "--run-dir", run, **down)
    assert done.returncode == 0, done.stderr
    assert f"grpo-rounds track {run}" in done.stdout
    found = digests(run)
    assert found["rounds/0002/labels/manifest.json"]["metrics"].pop("mlflow_unreachable") == 1.0  # the only trace of it
    assert found == digests(finished_run)
    # The clock jumped back between the rounds: the record is none the worse for it.
    manifest = run / "rounds/0002/policy/manifest.json"
    told = Manifest.from_bytes(manifest.read_bytes())
    manifest.write_bytes(replace(told, finished_at=told.finished_at - 1e6).to_bytes())
    assert command("track", run).returncode == 0
    record = mlflow_record(run)
    for name in ("tiny", "round-0002"):
        assert record[name]["metrics"].pop("labels/mlflow_unreachable") == [(2, 1.0)]
    assert record == mlflow_record(finished_run)


@pytest.mark.long
@pytest.mark.slow
def test_prefect_gone_in_the_middle_of_a_run_is_one_sentence_and_resume_works(
    command, one_round, finished_run, tmp_path
):
    run = one_round
    with prefect_server(tmp_path / "prefect") as environment:
        launcher = Launcher(environment | {"PREFECT_CLIENT_MAX_RETRIES": "1"})
        pid = launcher.start("train", TINY, "--run-dir", run, folder=tmp_path, log=tmp_path / "log")
        wait_for((run / "rounds/0002/plan.parquet").exists)
    status = launcher.wait(pid)
    launcher.close()
    complained = (tmp_path / "log.err").read_text()
    one_sentence(subprocess.CompletedProcess([], status, "", complained), "Prefect", "go on with the same command")
    assert command("resume", run).returncode == 0
    assert digests(run) == digests(finished_run)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["rollouts/shard-00000.parquet", "update_checkpoint/step-000001/manifest.json"])
def test_sigterm_is_obeyed_in_time_and_recorded(launcher, command, prefect_server, one_round, finished_run, moment):
    run, folder = one_round, one_round.parent
    freeze = {warm.FREEZE: f"after-rename:rounds/0002/{moment}"}
    pid = launcher.start("train", TINY, "--run-dir", run, folder=folder, log=folder / "log", **freeze)
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    os.kill(pid, signal.SIGTERM)
    began = time.monotonic()
    os.kill(pid, signal.SIGCONT)
    assert launcher.wait(pid) == 128 + signal.SIGTERM
    # The one promise about time: who asks a process to leave waits ten seconds. A busy machine may add to that.
    assert time.monotonic() - began < 15
    assert "stopped by SIGTERM" in (folder / "log.err").read_text()
    assert mlflow_record(run)["tiny"]["status"] == "KILLED"
    assert not (run / "rounds/0002/evaluation").exists()
    assert command("resume", run).returncode == 0
    assert digests(run) == digests(finished_run)
    assert mlflow_record(run) == mlflow_record(finished_run)
    assert {state for _, state in in_prefect(run, prefect_server)["flows"]} == {"Crashed", "Completed"}


@pytest.mark.slow
def test_prefects_own_retry_goes_on_with_a_killed_run(launcher, prefect_server, one_round, finished_run):
    run = one_round
    killed = {"folder": run.parent, "GRPO_ROUNDS_FAULT": "progress:update_policy:2@3"}
    assert launcher.run("train", TINY, "--run-dir", "run", **killed).returncode == -signal.SIGKILL
    identity = json.loads((run / "run.json").read_text())["run_id"]
    again = [*warm.program(), "python", "-c", RETRY, identity, *warm.program()]
    done = subprocess.run(again, cwd=ROOT, env=os.environ | prefect_server, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(run) == digests(finished_run)


RETRY = """
import subprocess, sys
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterTags
from prefect.states import Crashed
tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"grpo-run-{sys.argv[1]}"]), name=FlowRunFilterName(any_=["tiny"]))
with get_client(sync_client=True) as client:
    (killed,) = client.read_flow_runs(flow_run_filter=tagged)
    client.set_flow_run_state(killed.id, Crashed(message="its process died"), force=True)  # as a zombie automation does
retry = ["prefect", "flow-run", "retry", str(killed.id), "--entrypoint", "flows/train.py:train"]
sys.exit(subprocess.run([*sys.argv[2:], *retry]).returncode)
"""


def test_a_second_writer_is_told_who_holds_the_run(launcher, command, tmp_path):
    run = tmp_path / "run"
    pid = launcher.start("train", TINY, "--run-dir", run, folder=tmp_path, log=tmp_path / "log")
    wait_for((run / "rounds/0000/policy/manifest.json").exists)
    one_sentence(command("train", TINY, "--run-dir", run), f"process {pid} on ", "since 20")
    os.kill(pid, signal.SIGKILL)
    assert launcher.wait(pid) == -signal.SIGKILL
    assert command("status", run).returncode == 0
    done = command("train", TINY, "--run-dir", run, "--rounds", "1")  # a holder that died blocks nobody
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while it starts", "in round 0"])
def test_the_temporary_prefect_server_dies_with_the_run_that_started_it(tmp_path, moment):
    run = tmp_path / "run"
    started = subprocess.Popen(
        [PROGRAM, "train", TINY, "--run-dir", run], env=_serverless(tmp_path), stdout=subprocess.DEVNULL
    )
    if moment == "in round 0":
        wait_for((run / "rounds/0000/policy/manifest.json").exists)
    wait_for(lambda: children(started.pid, "read -r line"))  # who watches over it
    (server,) = children(started.pid, "flows.own_server")
    assert run.exists() == (moment == "in round 0")
    started.kill()
    started.wait()
    wait_for(lambda: not Path(f"/proc/{server}").exists())


@pytest.mark.slow
def test_a_refused_config_leaves_no_temporary_prefect_server(tmp_path):
    wrong = [PROGRAM, "train", TINY, "--set", "model.name=none/such", "--run-dir", tmp_path / "run"]
    one_sentence(subprocess.run(wrong, env=_serverless(tmp_path), capture_output=True, text=True), "none/such")
    wait_for(lambda: not _servers_of(tmp_path))


def _servers_of(folder: Path) -> list[int]:
    import psutil

    found = psutil.process_iter(["pid", "cmdline", "environ"])
    return [
        process.pid
        for process in found
        if "flows.own_server" in (process.info["cmdline"] or [])
        and (process.info["environ"] or {}).get("PREFECT_HOME") == str(folder / "prefect")
    ]


def _serverless(folder: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return environment | {"PREFECT_HOME": str(folder / "prefect")}


def children(parent: int, word: str) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(parent).children(recursive=True) if word in " ".join(child.cmdline())]


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
