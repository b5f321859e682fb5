import json
import threading
import time
from dataclasses import replace

import pytest

from grpo_core import interrupt, lease
from grpo_core.artifacts import Artifact, ArtifactWriter
from grpo_core.errors import UserError
from grpo_core.fingerprint import Fingerprint
from grpo_core.lease import Held, Holder, Lease, LeaseLost, borrowing, holding
from grpo_core.process_identity import here, is_dead
from grpo_core.storage import Store

DEAD = Holder("someone", "far-away", 4711, "2026-01-01 00:00:00 UTC", None, lease_seconds=1.0)


@pytest.fixture
def store(object_store, tmp_path) -> Store:
    yield Store(f"s3://bucket/{tmp_path.name}")
    object_store.heal()


@pytest.fixture
def short(monkeypatch) -> None:
    """Leases that a test can wait for: over after 1 s, or 3 by the store's whole seconds."""
    for name, seconds in {"LEASE_SECONDS": 1.0, "RENEW_SECONDS": 0.2, "MARGIN_SECONDS": 0.3}.items():
        monkeypatch.setattr(lease, name, seconds)


def lock_of(store: Store) -> Lease:
    return Lease(store._objects, store.path(".lock"), store.uri)


def held(store: Store):
    return holding(lock_of(store), store.root)


def holder(store: Store) -> Holder:
    return Holder.from_bytes(store._objects.read_bytes(store.path(".lock")), "")


def leave(store: Store, left: Holder) -> None:
    store._objects.put_if(store.path(".lock"), left.to_bytes(), None)


def manifest_of(store: Store, value: int) -> bytes:
    writer = ArtifactWriter(Artifact(store, "rounds/0001/thing"), Fingerprint("stage", 1, 1, {}, {}))
    writer.write_json("value.json", value)
    return writer.finish().to_bytes()


def test_the_second_hears_of_the_first_and_gets_the_lock_when_it_is_given_back(store):
    with held(store), pytest.raises(Held) as found, held(store):
        pass
    assert str(found.value.holder) == str(holder(store))
    assert 50 < found.value.free_in <= 62
    with held(store):
        assert not holder(store).free
    assert holder(store).free


def test_a_lock_of_a_dead_process_of_this_machine_is_taken_at_once(store):
    own = here()
    if own is None:
        pytest.skip("this system does not tell processes apart")
    machine, pid, started = own.rsplit("/", 2)
    assert not is_dead(own)
    assert is_dead(f"{machine}/{pid}/{int(started) + 1}")
    assert not is_dead(f"another/{pid}/{int(started) + 1}")
    leave(store, replace(DEAD, process=f"{machine}/{pid}/{int(started) + 1}", lease_seconds=3600.0))
    with held(store):
        assert holder(store).pid != DEAD.pid


def test_of_many_who_find_a_lease_run_out_one_takes_it(store):
    leave(store, DEAD)
    with pytest.raises(Held), held(store):
        pass
    deadline = time.monotonic() + 30
    while not lock_of(store)._may_take(store._objects.read(store.path(".lock"))):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    start, done, outcomes = threading.Barrier(8), threading.Barrier(8), []

    def try_it() -> None:
        mine = lock_of(store)
        start.wait()
        try:
            mine.acquire()
            outcomes.append(mine.owner)
        except Held as other:
            outcomes.append(f"held by {other.holder.owner}")
        done.wait()
        if mine.owner in outcomes:
            mine.release()

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [outcome for outcome in outcomes if not outcome.startswith("held")]
    assert outcomes.count(f"held by {winner}") == 7


def test_it_is_renewed_for_as_long_as_the_work_goes_on(store, short):
    with held(store):
        time.sleep(4)  # longer than the lease
        interrupt.safe_point()
        with pytest.raises(Held), held(store):
            pass
        assert holder(store).renewals > 5


def test_who_could_not_renew_stops_before_another_may_take_over(store, short, object_store):
    with held(store):
        object_store.fail("PUT", ".lock", 403)
        time.sleep(1)
        with pytest.raises(LeaseLost, match="could not be renewed for"):
            interrupt.safe_point()
        with pytest.raises(LeaseLost):
            store.write_bytes("anything.json", b"{}")
        with pytest.raises(LeaseLost):
            store.delete("anything.json")
        object_store.heal()
    assert not store.exists("anything.json")
    assert not holder(store).free  # it was not ours to give back


def test_a_writer_whose_lock_was_taken_over_can_write_no_manifest(store):
    with held(store):
        mine = store._objects.read(store.path(".lock"))
        store._objects.put_if(store.path(".lock"), replace(DEAD, lease_seconds=60.0).to_bytes(), mine.tag)
        with pytest.raises(LeaseLost, match="taken over by process 4711 on far-away"):
            manifest_of(store, 1)
        with pytest.raises(LeaseLost):
            interrupt.safe_point()
    assert not store.exists("rounds/0001/thing/manifest.json")
    assert holder(store).owner == "someone"


def test_a_manifest_replaces_none_that_it_has_not_seen(store):
    theirs = b'{"written": "by another process, late"}'
    writer = ArtifactWriter(Artifact(store, "rounds/0001/thing"), Fingerprint("stage", 1, 1, {}, {}))
    store._objects.put_if(store.path("rounds/0001/thing/manifest.json"), theirs, None)
    with pytest.raises(LeaseLost, match="was written by another process"):
        writer.finish()
    assert store.read_bytes("rounds/0001/thing/manifest.json") == theirs
    with held(store):  # whoever holds the lock has the last word
        writer.finish()
        assert Artifact(store, "rounds/0001/thing").condition().done


@pytest.mark.parametrize("after", [False, True])
def test_an_answer_that_gets_lost_is_no_refusal(store, object_store, after):
    object_store.fail("PUT", ".lock", 500, times=1, after=after)
    with held(store) as _:
        object_store.fail("PUT", ".lock", 500, times=1, after=after)
        lease.lease_over(f"{store.root}/").confirm()
        object_store.fail("PUT", "manifest.json", 500, times=1, after=after)
        expected = manifest_of(store, 1)
        assert store.read_bytes("rounds/0001/thing/manifest.json") == expected
    assert holder(store).free


def test_a_store_that_answers_after_a_while_is_waited_for(store, object_store):
    object_store.fail("PUT", "value.json", 503, times=2)
    manifest_of(store, 1)
    assert Artifact(store, "rounds/0001/thing").condition().done


def test_an_upload_that_fails_leaves_nothing(store, object_store):
    object_store.fail("PUT", "value.json", 403)
    with pytest.raises(UserError, match=r"can't be written \(.*\); see to its store"):
        manifest_of(store, 1)
    assert store.files("") == []


def test_what_others_write_is_seen_at_once(store):
    other = Store(f"{store.uri}/")
    assert store.files("rounds") == other.files("rounds") == []
    other.write_bytes("rounds/a.json", b"1")
    assert store.files("rounds") == ["a.json"]
    assert [path.rsplit("/", 1)[-1] for path in store.fs.ls(store.path("rounds"))] == ["a.json"]
    other.delete("rounds/a.json")
    assert store.files("rounds") == []
    assert not store.exists("rounds/a.json")


def test_a_replaced_object_is_not_taken_for_the_old_one(store):
    manifest_of(store, 1)
    artifact = Artifact(store, "rounds/0001/thing")
    assert artifact.condition().done
    with store.fs.open(store.path("rounds/0001/thing/value.json"), "wb") as stream:
        stream.write(b"2\n")
    assert artifact.condition().state == "damaged"


def test_workers_write_only_while_their_sender_holds_the_lock(store):
    with held(store):
        owner = holder(store).owner
    store._objects.delete(store.path(".lock"))
    leave(store, replace(DEAD, owner=owner))
    with borrowing(store._objects, store.root, owner, store.uri):
        store.write_bytes("shard.parquet", b"1")
    with borrowing(store._objects, store.root, "another", store.uri), pytest.raises(LeaseLost, match="far-away"):
        store.write_bytes("other.parquet", b"1")
    assert store.files("") == ["shard.parquet"]


def test_a_harmed_lock_is_one_sentence(store):
    store._objects.put_if(store.path(".lock"), json.dumps({"owner": "?"}).encode(), None)
    with pytest.raises(UserError, match="can't be read; make sure that nobody writes there"), held(store):
        pass


def test_large_files_go_up_in_parts_and_keep_their_digest(store, monkeypatch, tmp_path):
    from grpo_core import objects

    monkeypatch.setattr(objects, "_ONE_PUT", 1 << 20)
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 5 << 20)
    data = bytes(range(256)) * (12 << 12)  # 12 MiB
    record = store.write_bytes("model.safetensors", data)
    store._objects.fs.call_s3("head_object", Bucket="bucket", Key=store.path("model.safetensors").partition("/")[2])
    assert store.record("model.safetensors") == record == store.read_record("model.safetensors")
    # What a killed upload left is given up by the next writer, another writer's is not.
    for key in ("rounds/0001/policy/model.safetensors", "branches/x/rounds/0001/policy/model.safetensors"):
        store.fs.call_s3("create_multipart_upload", Bucket="bucket", Key=f"{store.path(key).partition('/')[2]}")
    store.write_bytes("branches/x/.lock", b"{}")
    store.sweep()
    assert [upload.name for upload in store._objects.uploads(store.root)] == [
        "branches/x/rounds/0001/policy/model.safetensors"
    ]
