"""Further prompts while too many groups have no variance: what a kill in between leaves is scored, too."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from stored_run import rollout_row, store_run

from grpo_core.artifacts import ArtifactWriter
from grpo_core.canary import CANARY_FILE
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import PLAN, ROLLOUTS, Progress
from tasks import sample_groups
from tasks.rollout_shards import Shard
from tasks.run import Run, round_folder
from tasks.stage import execute

OWN = """
from pathlib import Path
from grpo_core.rewards.verdict import Verdict

def by_text(samples, folder):
    down = (Path(folder) / "down").exists()
    return [Verdict.ERROR if down and s.prompt == "a?" else float(s.response) for s in samples]
"""


def test_a_reserve_that_was_drawn_before_a_kill_is_scored_though_it_is_needed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sampling_rewards_for_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sampling_rewards_for_tests", raising=False)
    reward = {"name": "sampling_rewards_for_tests:by_text", "retries": 0, "options": {"folder": str(tmp_path)}}
    data = {"prompts_per_round": 2, "dynamic_sampling": {"max_extra": 1}}
    generation = {"group_size": 2, "shard_groups": 1}
    prompts = {prompt: ["0"] for prompt in "abc"}
    run = store_run(tmp_path / "run", {2: prompts}, reward=reward, data=data, generation=generation)
    rows = [[0, 1, 2], list("abc"), [0, 0, 0], ["epoch"] * 3, [False, False, True]]
    for folder, name in (("plan.parquet", "plan.parquet"), ("policy", "policy.parquet")):
        location = round_folder(1 if name == "plan.parquet" else 0, folder)
        writer = ArtifactWriter(run.artifact(location), Fingerprint("test", 0, 1, {}, {}))
        writer.write_table(name, pa.table(rows, schema=PLAN))
        writer.finish()

    class Generator:
        def __init__(self, writer: ArtifactWriter) -> None:
            self.writer = writer

        def ensure_canary(self) -> None:
            self.writer.write_json(CANARY_FILE, {"mean_difference": 0.0})

        def generate(self, shards: Sequence[Shard], progress: Progress) -> Iterator[Shard]:
            for shard in shards:
                groups = [rollout_row(1, prompt, index, str(index)) for prompt in shard.prompt_ids for index in (0, 1)]
                self.writer.write_table(shard.name, pa.Table.from_pylist(groups, schema=ROLLOUTS))
                if shard.reserve:
                    raise KeyboardInterrupt
                yield shard

    @contextmanager
    def open_generator(run: Run, round_number: int, writer: ArtifactWriter) -> Iterator[Generator]:
        yield Generator(writer)

    monkeypatch.setattr(sample_groups, "open_generator", open_generator)
    (tmp_path / "down").touch()
    with pytest.raises(KeyboardInterrupt):
        execute(sample_groups.STAGE, run, 1)
    (tmp_path / "down").unlink()
    execute(sample_groups.STAGE, run, 1)
    shards = [run.artifact(round_folder(1, name)).tables() for name in ("rollouts", "rewards")]
    assert shards[0] == shards[1] == [f"shard-{number:05d}.parquet" for number in range(3)]
