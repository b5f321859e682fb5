"""kill -9 inside every stage, again and again in one run; it ends with the same bytes as a run that was left alone."""

import random
import signal
from fnmatch import fnmatch

import pytest
from rich.console import Console
from support import TINY, digests, in_prefect, mlflow_record

from faults.torture import torture

# In the order in which a run meets them: each start of the process dies at the next of these. Every stage is killed
# before a rename, inside its work and after a rename, and around its manifest.
FAULTS = [
    "stage-start:initial_policy:0",
    "before-rename:rounds/0000/policy/model.safetensors",
    "after-rename:rounds/0000/policy/canary.json",
    "after-rename:rounds/0000/policy/manifest.json",
    "after-rename:prompts/eval.parquet",
    "before-manifest:prompts",
    "progress:evaluate_policy:0",
    "before-rename:rounds/0000/evaluation/manifest.json",
    "after-rename:rounds/0000/promotion/decision.json",
    "before-rename:rounds/0001/plan.parquet",
    "after-rename:rounds/0001/plan.manifest.json",
    "after-rename:rounds/0001/rollouts/canary.json",
    "before-rename:rounds/0001/rollouts/shard-00001.parquet",
    "progress:generate_rollouts:1@2",
    "after-rename:rounds/0001/rollouts/.done-shard-00002.parquet.json",
    "before-rename:rounds/0001/rewards/shard-00000.parquet",
    "after-rename:rounds/0001/rewards/shard-00001.parquet",
    "before-rename:rounds/0001/rewards/manifest.json",
    "after-rename:rounds/0001/advantages/shard-00000.parquet",
    "before-manifest:rounds/0001/advantages",
    "after-rename:rounds/0001/gates/factors.json",
    "before-manifest:rounds/0001/gates",
    "before-rename:rounds/0001/update_checkpoint/step-000001/*",
    "progress:update_policy:1@3",
    "after-rename:rounds/0001/update_checkpoint/step-000002/manifest.json",
    "before-rename:rounds/0001/update_checkpoint/step-000003/manifest.json",
    "after-rename:rounds/0001/steps/steps.parquet",
    "after-rename:rounds/0001/trainer_state/manifest.json",
    "before-rename:rounds/0001/policy/manifest.json",
    "after-rename:rounds/0001/evaluation/evaluation.parquet",
    "stage-start:promote_policy:1",
    "after-rename:rounds/0001/promotion/manifest.json",
    "before-rename:rounds/0002/labels/labels.parquet",
    "before-rename:rounds/0002/update_checkpoint/step-000003/optimizer-00000.safetensors",
    "before-rename:rounds/0002/evaluation/manifest.json",
    "before-manifest:rounds/0002/promotion",
]


@pytest.mark.long
@pytest.mark.slow
def test_killed_in_every_stage_it_ends_with_the_same_bytes(command, prefect_server, finished_run, tmp_path):
    run = tmp_path / "run"
    for number, fault in enumerate(FAULTS):
        # A run is gone on with by the same command or by resume; both are the same to it.
        again = ("resume", run) if number % 2 and (run / "config.yaml").exists() else ("train", TINY, "--run-dir", run)
        killed = command(*again, fault=fault)
        assert killed.returncode == -signal.SIGKILL, (fault, killed.stdout, killed.stderr)
    resumed = command("resume", run)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert digests(run) == digests(finished_run)
    left = [path for path in run.rglob("*") if fnmatch(path.name, ".done-*") or fnmatch(path.name, ".tmp-*")]
    assert left + list(run.rglob("update_checkpoint")) == []
    # MLflow has one run, and each round's points, tables and inputs once.
    assert mlflow_record(run) == mlflow_record(finished_run)
    # Prefect believed the killed flow runs to be going on; the ones that came after set that right.
    states = [state for _, state in in_prefect(run, prefect_server)["flows"]]
    assert set(states) == {"Crashed", "Completed"}
    assert states.count("Crashed") >= len(FAULTS)


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(launcher, finished_run, tmp_path):
    seed = random.randrange(2**16)
    tally = torture(launcher, finished_run, tmp_path, kills=6, seed=seed, tell=Console(quiet=True))
    assert tally.identical == tally.runs, f"seed {seed}"
    assert tally.kills == 6
