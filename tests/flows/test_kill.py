"""kill -9 inside every stage, again and again in one run; it ends with the same bytes as a run that was left alone."""

import shutil
import signal

import pytest
from support import TINY, digests, in_prefect

# In the order in which a run meets them: each start of the process dies at the next of these.
FAULTS = [
    "before-rename:rounds/0000/policy/model.safetensors",
    "before-manifest:prompts",
    "progress:evaluate_policy:0",
    "before-rename:rounds/0001/plan.parquet",
    "before-rename:rounds/0001/rollouts/shard-00001.parquet",
    "progress:generate_rollouts:1@2",
    "after-rename:rounds/0001/rewards/shard-00001.parquet",
    "before-manifest:rounds/0001/advantages",
    "before-manifest:rounds/0001/gates",
    "progress:update_policy:1@3",
    "after-rename:rounds/0001/trainer_state/manifest.json",
    "before-rename:rounds/0001/policy/manifest.json",
    "before-rename:rounds/0002/evaluation/manifest.json",
]


@pytest.mark.slow
def test_killed_in_every_stage_it_ends_with_the_same_bytes(command, prefect_server, finished_run, tmp_path):
    run = tmp_path / "run"
    for fault in FAULTS:
        killed = command("train", TINY, "--run-dir", run, fault=fault)
        assert killed.returncode == -signal.SIGKILL, (fault, killed.stdout, killed.stderr)
    resumed = command("resume", run)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert digests(run) == digests(finished_run)
    assert not list(run.rglob(".done-*")) + list(run.rglob(".tmp-*"))
    # Prefect believed the killed flow runs to be going on; the ones that came after set that right.
    states = [state for _, state in in_prefect(run, prefect_server)["flows"]]
    assert set(states) == {"Crashed", "Completed"}
    assert states.count("Crashed") >= len(FAULTS)


@pytest.mark.slow
def test_a_harmed_file_is_named_and_made_again_with_the_same_bytes(command, finished_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    shard = run / "rounds/0002/rewards/shard-00001.parquet"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    told = command("status", run, "--json")
    assert '"state": "damaged"' in told.stdout
    assert "rewards/shard-00001.parquet has other bytes" in told.stdout
    assert command("resume", run).returncode == 0
    assert digests(run) == digests(finished_run)
