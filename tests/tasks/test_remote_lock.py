import logging
import subprocess
import sys

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from grpo_core.errors import UserError
from grpo_core.lease import Lease
from grpo_core.storage import Store
from tasks import remote_lock
from tasks.run import RunIsHeld, single_writer

HOLD = """
import sys, time
from grpo_core import lease
lease.RENEW_SECONDS = 0.5
from tasks.run import single_writer
with single_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


class Elsewhere(MemoryFileSystem):
    """A store of which nothing is known."""

    protocol = "elsewhere"


def start_holder(uri: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, uri], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    return holder


def test_the_second_writer_hears_who_holds_the_run_and_a_dead_one_does_not_block(object_store, tmp_path, caplog):
    uri = f"s3://bucket/{tmp_path.name}"
    holder = start_holder(uri)
    try:
        told = pytest.raises(RunIsHeld, match=rf"process {holder.pid} on .* since ")
        with caplog.at_level(logging.WARNING), told, single_writer(uri):
            pass
        assert f"is locked by process {holder.pid}" in caplog.text
        assert "waiting to see whether that is alive" in caplog.text
    finally:
        holder.kill()
        holder.wait()
    with single_writer(uri):  # the same machine knows that it is dead
        pass


def test_a_dead_holder_elsewhere_is_waited_for(object_store, tmp_path, monkeypatch):
    uri = f"s3://bucket/{tmp_path.name}"
    monkeypatch.setattr("grpo_core.lease.is_dead", lambda identity: False)
    monkeypatch.setattr("grpo_core.lease.LEASE_SECONDS", 1.0)
    monkeypatch.setattr("grpo_core.lease.RENEW_SECONDS", 60.0)
    store = Store(uri)
    Lease(store._objects, store.path(".lock"), uri).acquire()  # and never heard of again
    with single_writer(uri):
        pass


def test_a_store_that_passes_over_conditions_is_refused(object_store, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_lock, "_proven", set())
    object_store.ignore_conditions(True)
    try:
        with (
            pytest.raises(UserError, match="does not enforce conditional writes"),
            single_writer(f"s3://bucket/{tmp_path.name}"),
        ):
            pass
    finally:
        object_store.ignore_conditions(False)


def test_a_missing_bucket_and_a_silent_store_are_one_sentence(object_store, monkeypatch):
    with pytest.raises(UserError, match=r"s3://nowhere/run.*see to its bucket"), single_writer("s3://nowhere/run"):
        pass


def test_memory_belongs_to_one_process_and_other_stores_need_a_word(tmp_path, monkeypatch):
    uri = f"memory://{tmp_path.name}/run"
    with single_writer(uri), pytest.raises(RunIsHeld), single_writer(uri):
        pass
    with single_writer(uri):
        pass
    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    with pytest.raises(UserError, match="GRPO_ROUNDS_UNLOCKED=1"), single_writer(f"elsewhere://{tmp_path.name}"):
        pass
    monkeypatch.setenv("GRPO_ROUNDS_UNLOCKED", "1")
    with single_writer(f"elsewhere://{tmp_path.name}"):
        pass
