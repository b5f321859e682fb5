"""A shard has the same bytes whichever process writes it, and its mark lets the artifact's writer take it up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.artifacts import Artifact, ArtifactWriter
from grpo_core.fingerprint import Fingerprint
from grpo_core.generation.engine import GenerationConfig, Request
from grpo_core.generation.open import open_engine
from grpo_core.generation.shards import RolloutJob, make_shards, sampling_of, write_shard
from grpo_core.models import ModelConfig, save_policy
from grpo_core.schemas import ROLLOUTS
from grpo_core.storage import Store
from grpo_core.tiny import build_tiny

FINGERPRINT = Fingerprint("test", 1, 1, {}, {})
NAMES = ["shard-00000.parquet", "shard-00001.parquet"]
OTHER_PROCESS = """
import sys
from pathlib import Path
from grpo_core.generation.open import open_engine
from grpo_core.generation.shards import RolloutJob, write_shard

job = RolloutJob.model_validate_json(Path(sys.argv[1]).read_text())
with open_engine(Path(sys.argv[2]), job.model, job.generation) as engine:
    write_shard(job, engine, sys.argv[3])
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    save_policy(*build_tiny(0), folder)
    return folder


def job_in(folder: Path) -> RolloutJob:
    generation = GenerationConfig(group_size=2, max_new_tokens=4)
    return RolloutJob(
        store=str(folder),
        folder="rounds/0001/rollouts",
        fingerprint=FINGERPRINT.digest,
        round=1,
        policy_digest="p",
        model=ModelConfig(device="cpu", threads=1),
        generation=generation,
        sampling=sampling_of(generation),
        shards={
            name: [Request(f"{number}", [5 + number, 6], [2**64 - 1 - number, number])]
            for number, name in enumerate(NAMES)
        },
    )


def writer_of(job: RolloutJob) -> ArtifactWriter:
    return ArtifactWriter(Artifact(Store(job.store), job.folder), FINGERPRINT)


def test_a_shard_of_another_process_is_taken_up_and_equals_ones_own(policy: Path, tmp_path: Path) -> None:
    own, others = job_in(tmp_path / "own"), job_in(tmp_path / "others")
    own_writer, writer = writer_of(own), writer_of(others)
    heard: list[tuple[int, int]] = []
    with open_engine(policy, own.model, own.generation) as engine:
        for name in make_shards(own, engine, NAMES, lambda done, total: heard.append((done, total))):
            assert own_writer.take_up(name)
    assert heard[-1] == (4, 4)
    assert heard == sorted(heard)

    assert not writer.take_up(NAMES[1])
    told = tmp_path / "job.json"
    told.write_text(others.model_dump_json())
    subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(told), str(policy), NAMES[1]], check=True)
    assert writer.take_up(NAMES[1])
    assert writer.files[NAMES[1]] == own_writer.files[NAMES[1]]
    assert writer.finish().rows == 2
    assert Artifact(writer.store, others.folder).read_table(ROLLOUTS).num_rows == 2


def test_a_shard_with_other_bytes_or_for_another_artifact_is_not_taken_up(policy: Path, tmp_path: Path) -> None:
    job = job_in(tmp_path)
    writer = writer_of(job)
    with open_engine(policy, job.model, job.generation) as engine:
        write_shard(job, engine, NAMES[0])
        write_shard(job.model_copy(update={"fingerprint": "another"}), engine, NAMES[1])
    place = tmp_path / job.folder / NAMES[0]
    place.write_bytes(place.read_bytes()[:-1] + b"?")
    assert not writer.take_up(NAMES[0])
    assert not writer.take_up(NAMES[1])


def test_a_job_survives_json(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    assert RolloutJob.model_validate(json.loads(job.model_dump_json())) == job
    assert job.completions(NAMES[0]) == 2
