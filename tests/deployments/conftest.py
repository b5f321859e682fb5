"""A bench for one file of tests, and a run that was left alone to compare with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import POOL, SMALL, Bench
from prefect.settings import PREFECT_API_URL, temporary_settings
from support import TINY


@pytest.fixture(scope="module")
def bench(warm_process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The server and its worker, for one file of tests."""
    started = Bench(tmp_path_factory.mktemp("bench"))
    try:
        with temporary_settings({PREFECT_API_URL: started.environment["PREFECT_API_URL"]}):
            from deployments.pools import ensure_pool

            ensure_pool(POOL, "process")
            yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def alone(bench: Bench) -> Path:
    """The same config trained in one go, by the command line."""
    run = bench.home / "alone/run"
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    done = bench.grpo_rounds("train", TINY, "--run-dir", run, *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    return run
