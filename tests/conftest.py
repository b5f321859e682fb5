"""What every floor's tests share: a Prefect server of this session's own, and runs of the real command line."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import TINY

os.environ["OMP_NUM_THREADS"] = "1"  # the toys need no more, and one thread keeps its pace on a busy machine
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that reaches for a hub is a defect
for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "GRPO_ROUNDS_FAULT"):
    os.environ.pop(name, None)

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A real Prefect server on loopback with its own database and result storage; yields the environment to use it."""
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    environment = {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "results"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
    }
    log = (home / "server.log").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env=os.environ | environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                break
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the Prefect server did not start: {(home / 'server.log').read_text()[-2000:]}")
            time.sleep(0.3)
    yield environment
    os.killpg(server.pid, signal.SIGTERM)
    server.wait(timeout=30)


@pytest.fixture(scope="session")
def command(prefect_server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Runs ``grpo-rounds`` as a user would, in a folder of the session's own; keywords go into the environment."""
    folder = tmp_path_factory.mktemp("work")

    def run(*arguments: object, fault: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).parent / "grpo-rounds", *map(str, arguments)],
            cwd=folder,
            env=os.environ | prefect_server | ({"GRPO_ROUNDS_FAULT": fault} if fault else {}) | environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def finished_run(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny config trained to its end without any trouble; treat it as read-only."""
    run = tmp_path_factory.mktemp("finished") / "run"
    done = command("train", TINY, "--run-dir", run)
    assert done.returncode == 0, done.stdout + done.stderr
    return run
