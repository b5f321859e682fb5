import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from grpo_core.artifacts import Artifact, ArtifactWriter
from grpo_core.errors import UserError
from grpo_core.fingerprint import Fingerprint
from grpo_core.storage import Store

SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64(), nullable=False)])


def table(start: int = 0) -> pa.Table:
    return pa.table({"key": ["a", "b"], "value": [start, start + 1]}, schema=SCHEMA)


def key(**config: object) -> Fingerprint:
    return Fingerprint(stage="stage", round=1, version=1, config=config, inputs={"input": "digest"})


def write(store: Store, fingerprint: Fingerprint, location: str = "rounds/0001/rollouts") -> Artifact:
    artifact = Artifact(store, location)
    writer = ArtifactWriter(artifact, fingerprint)
    for number in range(2):
        writer.write_table(f"shard-{number:05d}.parquet", table(number))
    writer.finish({"rows": 4.0})
    return artifact


@pytest.fixture(params=["local", "memory", "s3"])
def store(request, tmp_path) -> Store:
    if request.param == "s3":
        request.getfixturevalue("object_store")
    places = {
        "local": str(tmp_path / "run"),
        "memory": f"memory://{tmp_path.name}",
        "s3": f"s3://bucket/{tmp_path.name}",
    }
    store = Store(places[request.param])
    yield store
    store.delete("")


def test_finished_artifact_is_done_and_reads_back(store):
    artifact = write(store, key(a=1))
    assert artifact.condition(key(a=1)).state == "done"
    assert artifact.read_table(SCHEMA)["value"].to_pylist() == [0, 1, 1, 2]
    assert artifact.manifest().rows == 4
    assert store.hidden_files("rounds/0001/rollouts") == []


def test_equal_work_has_an_equal_digest(tmp_path):
    one = write(Store(str(tmp_path / "one")), key(a=1)).manifest()
    other = write(Store(str(tmp_path / "two")), key(a=1)).manifest()
    assert one.digest == other.digest
    assert one.files == other.files


def test_another_config_or_input_makes_it_stale_and_is_named(store):
    artifact = write(store, key(generation={"temperature": 1.0, "top_k": 0}))
    condition = artifact.condition(key(generation={"temperature": 0.7, "top_k": 0}))
    assert condition.state == "stale"
    assert condition.why == "changed: config generation.temperature"
    other = Fingerprint("stage", 1, 1, {"generation": {"temperature": 1.0, "top_k": 0}}, {"input": "another"})
    assert artifact.condition(other).why == "changed: input input"


@pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "swap"])
def test_harm_to_a_file_is_found_and_named(tmp_path, harm):
    store = Store(str(tmp_path))
    artifact = write(store, key())
    first, second = (tmp_path / "rounds/0001/rollouts" / f"shard-0000{n}.parquet" for n in (0, 1))
    content = bytearray(first.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
        first.write_bytes(content)
    elif harm == "truncate":
        first.write_bytes(content[:-1])
    elif harm == "delete":
        first.unlink()
    else:
        first.write_bytes(second.read_bytes())
    condition = artifact.condition(key())
    assert condition.state == "damaged"
    assert "shard-00000.parquet" in condition.why


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": 3}', b"null"])
def test_harmed_manifest_is_damage_not_a_crash(tmp_path, content):
    store = Store(str(tmp_path))
    artifact = write(store, key())
    (tmp_path / "rounds/0001/rollouts/manifest.json").write_bytes(content)
    assert artifact.condition(key()).state == "damaged"
    assert write(store, key()).condition(key()).done


def test_a_new_writer_keeps_finished_shards_of_its_own_key_only(tmp_path):
    store = Store(str(tmp_path))
    artifact = Artifact(store, "a")
    ArtifactWriter(artifact, key(a=1)).write_table("shard-00000.parquet", table())
    again = ArtifactWriter(artifact, key(a=1))
    assert again.has("shard-00000.parquet")
    other = ArtifactWriter(artifact, key(a=2))
    assert not other.has("shard-00000.parquet")
    assert store.files("a") == []


def test_a_finished_shard_that_was_harmed_is_not_kept(tmp_path):
    store = Store(str(tmp_path))
    ArtifactWriter(Artifact(store, "a"), key()).write_table("shard-00000.parquet", table())
    (tmp_path / "a/shard-00000.parquet").write_bytes(b"other")
    assert not ArtifactWriter(Artifact(store, "a"), key()).has("shard-00000.parquet")


def test_shards_beside_a_harmed_one_are_kept(tmp_path):
    store = Store(str(tmp_path))
    artifact = write(store, key())
    digest = artifact.manifest().digest
    (tmp_path / "rounds/0001/rollouts/shard-00000.parquet").write_bytes(b"harmed")
    writer = ArtifactWriter(artifact, key())
    assert list(writer.files) == ["shard-00001.parquet"]
    writer.write_table("shard-00000.parquet", table(0))
    manifest = writer.finish({"rows": 4.0})
    assert (manifest.digest, manifest.rows) == (digest, 4)


def test_a_file_that_the_manifest_does_not_list_is_never_read(tmp_path):
    store = Store(str(tmp_path))
    artifact = write(store, key())
    folder = tmp_path / "rounds/0001/rollouts"
    (folder / "shard-00002.parquet").write_bytes((folder / "shard-00000.parquet").read_bytes())
    assert artifact.read_table(SCHEMA).num_rows == 4


def test_single_table_artifact_leaves_its_neighbours_alone(tmp_path):
    store = Store(str(tmp_path))
    rollouts = write(store, key(), "rounds/0001/rollouts")
    plan = Artifact(store, "rounds/0001/plan.parquet")
    for _ in range(2):
        writer = ArtifactWriter(plan, key())
        writer.write_table("plan.parquet", table())
        writer.finish()
    assert plan.condition(key()).done
    assert rollouts.condition(key()).done
    assert (tmp_path / "rounds/0001/plan.manifest.json").exists()


def test_retired_artifact_keeps_its_digest_and_loses_its_files(tmp_path):
    store = Store(str(tmp_path))
    artifact = write(store, key())
    digest = artifact.manifest().digest
    assert artifact.retire()
    assert artifact.condition(key()).done
    assert artifact.manifest().digest == digest
    assert store.files("rounds/0001/rollouts") == ["manifest.json", "retired.json", "timings.json"]
    assert not artifact.retire()
    assert write(store, key()).read_table(SCHEMA).num_rows == 4  # made anew, it is whole again
    assert not artifact.is_retired


def test_manifest_holds_no_wall_clock_figure_in_what_is_digested(tmp_path):
    manifest = json.loads(write(Store(str(tmp_path)), key()).store.read_bytes("rounds/0001/rollouts/manifest.json"))
    assert set(manifest) == {"fingerprint", "parts", "rows", "files", "metrics", "finished_at", "manifest_sha256"}
    assert "timings.json" not in manifest["files"]


KILLED = """
import sys, pyarrow as pa
sys.path.insert(0, {tests!r})
from test_artifacts import key, table, write
from grpo_core.storage import Store
write(Store({root!r}), key())
"""


@pytest.mark.parametrize(
    ("fault", "kept"),
    [
        ("before-rename:*/shard-00000.parquet", 0),
        ("after-rename:*/shard-00000.parquet", 0),  # renamed, but not yet marked as finished
        ("before-rename:*/shard-00001.parquet", 1),
        ("before-manifest:*", 2),
        ("before-rename:*/manifest.json", 2),
    ],
)
def test_sigkill_at_any_step_loses_only_the_unfinished(tmp_path, fault, kept):
    root = tmp_path / "run"
    code = KILLED.format(tests=str(Path(__file__).parent), root=str(root))
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ | {"GRPO_ROUNDS_FAULT": fault})
    assert killed.returncode == -signal.SIGKILL
    store = Store(str(root))
    assert Artifact(store, "rounds/0001/rollouts").condition(key()).state == "missing"
    writer = ArtifactWriter(Artifact(store, "rounds/0001/rollouts"), key())
    assert len(writer.files) == kept
    untouched = write(Store(str(tmp_path / "reference")), key()).manifest()
    assert write(store, key()).manifest().digest == untouched.digest
    assert store.hidden_files("rounds/0001/rollouts") == []


def test_unwritable_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be written"):
        Store(str(tmp_path / "file")).write_bytes("below/a", b"")


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="holds a password") as refused:
        Store("ftp://ann:secret@127.0.0.1:1/run")
    assert "secret" not in str(refused.value)
