"""A changed config runs again exactly what reads the changed keys, says so, and ends like a run made with it."""

import json
import re
import shutil

import pytest
from left_alone import train_here
from support import TINY, digests

from grpo_core.config import load_config


def reruns(output: str) -> set[tuple[int, str]]:
    return {(int(number), stage) for number, stage in re.findall(r"^round (\d+): (\w+) runs again", output, re.M)}


@pytest.mark.slow
def test_a_changed_run_ends_like_a_new_one_with_that_config(command, finished_run, tmp_path):
    changed, fresh = tmp_path / "changed/run", tmp_path / "fresh/run"
    shutil.copytree(finished_run, changed)
    sets = ["--set", "reward.correct=2.0", "--rounds", "1"]
    planned = command("train", TINY, "--run-dir", changed, *sets, "--dry-run")
    assert "runs again: score_rewards of rounds 1 to 2 (changed: config reward.correct)" in planned.stdout
    done = command("train", TINY, "--run-dir", changed, *sets)
    assert done.returncode == 0, done.stderr
    assert "changed: reward.correct from 1.0 to 2.0" in done.stdout
    # Rollouts and plan stay; advantages are z-scores, and only epsilon makes them differ.
    assert (1, "score_rewards") in reruns(done.stdout)
    assert not {(1, "plan_round"), (1, "generate_rollouts"), (0, "filter_prompts")} & reruns(done.stdout)
    train_here(fresh, load_config(TINY, ["reward.correct=2.0"], rounds=1))
    here = digests(changed)
    assert {name: here[name] for name in digests(fresh)} == digests(fresh)
    (line,) = (changed / "config-changes.jsonl").read_text().splitlines()
    assert json.loads(line)["changed"] == {"rounds": [2, 1], "reward.correct": [1.0, 2.0]}


@pytest.mark.slow
def test_keys_that_no_stage_reads_run_nothing_again(command, finished_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    sets = ["--set", "update.checkpoint_steps=3", "--set", "retention.policies=5", "--set", "tracking.table_rows=7"]
    done = command("train", TINY, "--run-dir", run, *sets)
    assert done.returncode == 0, done.stderr
    assert reruns(done.stdout) == set()
    assert digests(run) == digests(finished_run)


@pytest.mark.long
@pytest.mark.slow
def test_models_that_retention_removed_are_made_again_where_a_harmed_round_needs_them(command, tmp_path):
    run = tmp_path / "run"
    keep = ["retention.policies=1", "retention.trainer_states=1"]
    train_here(run, load_config(TINY, [*keep, "evaluation.every=9"], rounds=4))
    whole = digests(run)
    assert not (run / "rounds/0002/policy/model.safetensors").exists()
    shard = run / "rounds/0003/rollouts/shard-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-5])
    done = command("resume", run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(run) == whole
    # An evaluation that would be due now is not worth that: it stays away, and the run is whole.
    new_home = {"PREFECT_LOCAL_STORAGE_PATH": str(tmp_path / "results")}  # no result of another run helps
    every = [word for key in (*keep, "evaluation.every=1") for word in ("--set", key)]
    done = command("train", TINY, "--run-dir", run, "--rounds", "4", *every, **new_home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (run / "rounds/0002/evaluation").exists()
    refused = command("evaluate", run, "--round", "2")
    assert refused.returncode == 2
    assert "removed by retention" in refused.stderr
    assert command("resume", run, "--rounds", "2", **new_home).returncode == 0
    gates = {name: manifest for name, manifest in digests(run).items() if "gates" in name}
    assert gates == {name: manifest for name, manifest in whole.items() if "gates" in name}
