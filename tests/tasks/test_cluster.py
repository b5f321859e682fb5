"""Rollouts and rewards by two workers of a real Ray cluster, on a run in a real object store."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from support import ROOT, TINY, digests

from grpo_core.cluster import ClusterConfig
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from grpo_core.storage import Store
from tasks.cluster import _connect, in_chunks, is_on_cluster, opened, ticket
from tasks.run import create_or_open


@pytest.mark.parametrize(("count", "names", "chunks"), [
    (2, "abcde", ["ab", "cde"]), (3, "abc", ["a", "b", "c"]), (4, "ab", ["a", "b"]), (2, "", []), (1, "abc", ["abc"]),
])  # fmt: skip
def test_chunks_are_even_and_whole(count, names, chunks):
    assert in_chunks(list(names), count) == [list(chunk) for chunk in chunks]


def test_a_worker_that_sees_another_run_or_none_says_so(tmp_path):
    run, _ = create_or_open(str(tmp_path / "run"), RunConfig())
    order = ticket(run)
    with opened(order) as found:
        assert found == run
    for wrong in ({"uri": str(tmp_path / "elsewhere")}, {"identity": "another"}):
        with pytest.raises(UserError, match=r"does not see the run of .*s3://"), opened(order | wrong):
            pass


def test_where_it_runs_is_in_no_fingerprint(tmp_path):
    from flows.stages import stages_of

    run, _ = create_or_open(str(tmp_path / "a"), RunConfig())
    other, _ = create_or_open(str(tmp_path / "b"), RunConfig(cluster=ClusterConfig(address="auto", engines=4)))
    for number in (0, 1):
        for _, stage in stages_of(run, number):
            assert stage.config(run) == stage.config(other), stage.name


def test_an_audit_asks_no_cluster(tmp_path):
    from grpo_core.artifacts import Artifact, ArtifactWriter
    from grpo_core.fingerprint import Fingerprint

    run, _ = create_or_open(str(tmp_path / "run"), RunConfig(cluster={"address": "auto"}))
    key = Fingerprint("stage", 1, 1, {}, {})
    assert is_on_cluster(run, ArtifactWriter(run.artifact("rounds/0001/rewards"), key))
    scratch = Artifact(Store(str(tmp_path / "scratch")), "rounds/0001/rewards")
    assert not is_on_cluster(run, ArtifactWriter(scratch, key))


def _ray_processes() -> list[tuple[int, str]]:
    names = ("raylet", "gcs_server", "ray::")
    return [(p.pid, p.info["name"]) for p in psutil.process_iter(["name"]) if p.info["name"].startswith(names)]


@pytest.fixture(scope="module")
def ray_address(object_store) -> Iterator[str]:
    """A cluster of two CPUs whose workers die once in each stage: after the first shard of a round's first half."""
    pytest.importorskip("prefect_ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    before = set(_ray_processes())
    # Workers have this process's environment; the run's own process, which is told to die elsewhere, has another.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("GRPO_ROUNDS_FAULT", "after-rename:rounds/000?/r*s/.done-shard-00000.parquet.json")
        cluster = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
        )
    try:
        yield cluster.address
    finally:
        cluster.shutdown()
        assert set(_ray_processes()) <= before


@pytest.mark.slow
@pytest.mark.distributed
def test_more_than_the_cluster_has_is_refused(ray_address):
    import ray

    try:
        with pytest.raises(UserError, match="cluster asks for 1 GPU a worker, and the whole cluster has 0"):
            _connect(ClusterConfig(address=ray_address), {"num_cpus": 1, "num_gpus": 1})
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.distributed
def test_workers_and_driver_killed_it_ends_with_the_bytes_of_a_run_without_ray(
    ray_address, command, finished_run, object_store, tmp_path
):
    uri = "s3://bucket/runs/ray"
    settings = {
        "address": ray_address, "gpus_per_engine": 0, "engines": 2, "scorers": 2, "cpus_per_engine": 1,
    }  # fmt: skip
    train = ["train", TINY, "--run-dir", uri]
    for key, value in settings.items():
        train += ["--set", f"cluster.{key}={value}"]
    environment = object_store.environment | {"RAY_USAGE_STATS_ENABLED": "0"}

    # The worker that dies after its first shard is not begun again: the run stops, and what was finished stays.
    failed = command(*train, "--set", "cluster.retries=0", **environment)
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "A Ray worker could not do its work" in failed.stderr
    assert "rounds/0001/rollouts/shard-00000.parquet" in _shards(Store(uri))

    killed = command(*train, fault="after-rename:rounds/0001/rollouts/canary.json", **environment)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    store = Store(uri)
    made = {name: store._objects.read(store.path(name)).tag for name in _shards(store)}
    assert len(made) == 3

    done = command(*train, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with store.local_folder("") as copy:
        assert digests(copy) == digests(finished_run)
    assert {name: store._objects.read(store.path(name)).tag for name in _shards(store)} == made


def _shards(store: Store) -> list[str]:
    folder = "rounds/0001/rollouts"
    return [f"{folder}/{name}" for name in store.files(folder) if name.startswith("shard-")]


def test_an_address_that_nobody_answers_is_one_sentence(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(UserError, match="can't be reached"):
        _connect(ClusterConfig(address="127.0.0.1:1"), {"num_cpus": 1, "num_gpus": 0})


IN_PLACE = """
import os, sys
from grpo_core.cluster import ClusterConfig
from tasks.cluster import _connect
_connect(ClusterConfig(address="local"), {"num_cpus": 1, "num_gpus": 0})
print("connected", flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.distributed
def test_a_cluster_started_in_place_ends_with_a_process_that_is_killed():
    pytest.importorskip("prefect_ray")
    before = set(_ray_processes())
    started = subprocess.run(
        [sys.executable, "-c", IN_PLACE], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert started.returncode == -signal.SIGKILL, started.stderr
    assert started.stdout == "connected\n"
    deadline = time.monotonic() + 60
    while left := set(_ray_processes()) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
