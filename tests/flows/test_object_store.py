"""A run on ``s3://``: the same bytes as on a disk, through kills; every command reads it."""

import json
import signal
from pathlib import Path

import pytest
from support import TINY, digests

from grpo_core.storage import Store

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

# Each start dies at the next of these; together they lie in every kind of stage and write.
FAULTS = [
    "after-rename:rounds/0001/rollouts/.done-shard-00001.parquet.json",
    "after-rename:rounds/0001/update_checkpoint/step-000002/manifest.json",
    "before-rename:rounds/0001/policy/manifest.json",
    "before-manifest:rounds/0002/advantages",
]


@pytest.fixture(scope="module")
def run(command, object_store) -> str:
    """A run that was killed again and again, and went on to its end."""
    uri = "s3://bucket/runs/killed"
    for number, fault in enumerate(FAULTS):
        again = ("resume", uri) if number % 2 else ("train", TINY, "--run-dir", uri)
        killed = command(*again, fault=fault, **object_store.environment)
        assert killed.returncode == -signal.SIGKILL, (fault, killed.stdout, killed.stderr)
    resumed = command("resume", uri, **object_store.environment)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    return uri


def test_killed_inside_stages_it_ends_with_the_bytes_of_a_local_run(run, finished_run, object_store):
    with Store(run).local_folder("") as copy:
        assert digests(copy) == digests(finished_run)
        said = b"".join(path.read_bytes() for path in copy.rglob("*") if path.is_file())
    assert object_store.environment["AWS_SECRET_ACCESS_KEY"].encode() not in said
    hidden = [name for name in Store(run)._objects.names("bucket/runs/killed") if "/." in name or name.startswith(".")]
    assert hidden == [".lock"]


def test_going_on_where_nothing_is_left_to_do_asks_little_of_the_store(run, command, object_store):
    files = len(list(Store(run)._objects.names("bucket/runs/killed")))
    object_store.counts()
    assert command("resume", run, **object_store.environment).returncode == 0
    counts = object_store.counts()
    # A proof of every artifact, the record for MLflow, and the table: well under four requests a file.
    assert sum(counts.values()) < 4 * files, counts


def test_each_command_reads_it(run, command, object_store, tmp_path):
    def told(*arguments: object) -> str:
        done = command(*arguments, **object_store.environment)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    assert {stage["state"] for stage in json.loads(told("status", run, "--json"))["stages"]} == {"done"}
    assert "2 of 96" in told("audit", run, "--best", "2")
    assert "96" in told("audit", run, "--sql", "select count(*) from audit")
    assert "Nothing differs" in told("audit", "verify", run)
    assert "accuracy" in told("evaluate", run)
    told("rescore", run, "--advantage", "rloo")
    assert Store(run).exists("branches/rloo/report.md")


def test_two_writers_at_once_are_one(run, launcher, object_store, tmp_path):
    uri = "s3://bucket/runs/two"
    logs = [Path(tmp_path, name) for name in ("one", "other")]
    pids = [
        launcher.start(
            "train", TINY, "--run-dir", uri, "--rounds", "1", folder=tmp_path, log=log, **object_store.environment
        )
        for log in logs
    ]
    codes = [launcher.wait(pid) for pid in pids]
    said = [log.read_text() + log.with_suffix(".err").read_text() for log in logs]
    assert sorted(codes) == [0, 2], said
    loser = codes.index(2)
    assert f"is being written by process {pids[1 - loser]} on " in said[loser]


def test_one_harmed_object_is_made_again(run, command, object_store):
    store = Store(run)
    with store.fs.open(store.path("rounds/0002/rewards/shard-00001.parquet"), "wb") as stream:
        stream.write(b"harm")
    done = command("status", run, **object_store.environment)
    assert "damaged" in done.stdout
    done = command("resume", run, **object_store.environment)
    assert done.returncode == 0, done.stderr
    assert "score_rewards runs again" in done.stdout
    assert "Nothing differs" in command("audit", "verify", run, **object_store.environment).stdout
