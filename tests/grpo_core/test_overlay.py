from pathlib import Path

import pyarrow as pa
import pytest

from grpo_core.artifacts import Artifact, ArtifactWriter
from grpo_core.fingerprint import Fingerprint
from grpo_core.overlay import Overlay
from grpo_core.storage import Store

KEY = Fingerprint("test", 1, 1, {}, {})
SCHEMA = pa.schema([("number", pa.int32())])


def write(store: Store, location: str, number: int) -> None:
    writer = ArtifactWriter(Artifact(store, location), KEY)
    writer.write_table("t.parquet", pa.table({"number": pa.array([number], pa.int32())}))
    writer.finish()


@pytest.mark.parametrize("remote", [False, True])
def test_reads_go_through_and_writes_never_do(tmp_path: Path, remote: bool) -> None:
    beneath = Store(f"memory://overlay/{tmp_path.name}" if remote else str(tmp_path / "beneath"))
    for place in ("old", "new"):
        write(beneath, place, 1)
    store = Overlay(Store(str(tmp_path / "own")), beneath, lambda path: path.split("/")[0] != "old")
    old, new = Artifact(store, "old"), Artifact(store, "new")
    assert old.condition(KEY).done
    assert old.read_table(SCHEMA)["number"].to_pylist() == [1]
    with store.local_folder("old") as folder:
        assert sorted(path.name for path in folder.glob("*.parquet")) == ["t.parquet"]
    assert new.condition(KEY).state == "missing"  # its own and not there, whatever lies beneath
    write(store, "new", 2)
    assert new.read_table(SCHEMA)["number"].to_pylist() == [2]
    assert Artifact(beneath, "new").read_table(SCHEMA)["number"].to_pylist() == [1]
    for attempt in (
        lambda: store.write_bytes("old/x", b""),
        lambda: store.delete("old/t.parquet"),
        lambda: store.write_folder("old", lambda folder: None),
        old.retire,
    ):
        with pytest.raises(PermissionError, match="'old"):
            attempt()
    assert old.condition(KEY).done
    assert store.uri == str(tmp_path / "own")
