"""What every floor's tests share: a Prefect server of this session's own, and runs of the real command line."""

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import warm
from launcher import Launcher
from object_store import ObjectStore, object_store
from stores import templates
from support import TINY, prefect_server

os.environ["OMP_NUM_THREADS"] = "1"  # the toys need no more, and one thread keeps its pace on a busy machine
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that reaches for a hub is a defect
for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "GRPO_ROUNDS_FAULT"):
    os.environ.pop(name, None)

_stack = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """What all processes of xdist share: they find it in their environment."""
    _stack.enter_context(templates())
    if config.getoption("numprocesses", None):
        _stack.enter_context(warm.running())


def pytest_unconfigure() -> None:
    _stack.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with the most slow tests begin, so that at the end no process waits for another's long one."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # stable: within a file the order stays


@pytest.fixture(scope="session")
def warm_process() -> Iterator[None]:
    """Forks of one process stand for commands (tests/warm.py)."""
    with warm.running():
        yield


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", name="prefect_server")
def session_prefect_server(warm_process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """This session's Prefect server; yields the environment to use it."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture(scope="module", name="object_store")
def module_object_store() -> Iterator[ObjectStore]:
    """An S3-compatible server with an empty bucket, which this process and what it starts use for ``s3://``."""
    s3fs = pytest.importorskip("s3fs")
    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # another module's server is gone
        yield store


@pytest.fixture(scope="session")
def launcher(prefect_server: dict[str, str]) -> Iterator[Launcher]:
    """Starts ``grpo-rounds`` without its imports' seconds, against this session's Prefect server."""
    started = Launcher(prefect_server)
    yield started
    started.close()


@pytest.fixture(scope="session")
def command(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Runs ``grpo-rounds`` as a user would, in a folder of the session's own; keywords go into the environment."""
    folder = tmp_path_factory.mktemp("work")

    def run(*arguments: object, fault: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        more = {"GRPO_ROUNDS_FAULT": fault} if fault else {}
        return launcher.run(*arguments, folder=folder, **more, **environment)

    return run


@pytest.fixture(scope="session")
def finished_run(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny config trained to its end without any trouble; treat it as read-only."""
    run = tmp_path_factory.mktemp("finished") / "run"
    done = command("train", TINY, "--run-dir", run)
    assert done.returncode == 0, done.stdout + done.stderr
    return run
