"""A real round whose rollouts come from vLLM, killed while it generates and gone on with."""

import json
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
from support import TINY, digests
from vllm_policy import needs_vllm, save_small_policy


def engines_of(run: Path) -> list[int]:
    """Processes of engines that were started for a run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "grpo_core.generation.worker" in command and str(run) in Path(command[-1]).read_text():
            found.append(process.pid)
    return found


@pytest.mark.slow
@pytest.mark.distributed
@needs_vllm
def test_a_run_killed_while_vllm_generates_ends_with_the_same_bytes(command, tmp_path: Path) -> None:
    policy = save_small_policy(tmp_path / "model")
    options = (
        *("--rounds", 1, "--set", f"model.name={policy}", "--set", "model.threads=1"),
        *("--set", "generation.engine=vllm", "--set", "generation.vllm.kv_cache_gib=0.25"),
        *("--set", "generation.max_new_tokens=100", "--set", "generation.shard_groups=1"),
    )
    kept = ("--set", "generation.vllm.keep_alive=true")
    alone, killed = tmp_path / "alone", tmp_path / "killed"

    done = command("train", TINY, "--run-dir", alone, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((alone / "rounds/0001/policy/manifest.json").read_text())["metrics"]
    assert metrics["sampler_logprob_drift_max"] < 1e-4
    assert metrics["sampler_logprob_drift"] <= metrics["sampler_logprob_drift_max"]
    assert metrics["importance_outside"] == 0
    rollouts = json.loads((alone / "rounds/0001/rollouts/manifest.json").read_text())
    assert rollouts["parts"]["config"]["generation"]["vllm"]["kv_cache_gib"] == 0.25
    assert re.search(r"correction: truncate", (alone / "config.yaml").read_text())
    assert engines_of(alone) == []

    fault = "progress:generate_rollouts:1@3"
    done = command("train", TINY, "--run-dir", killed, *options, *kept, fault=fault)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    deadline = time.monotonic() + 60
    while engines_of(killed):
        assert time.monotonic() < deadline, "an engine outlived its run"
        time.sleep(0.1)
    assert not (killed / "rounds/0001/rollouts/manifest.json").exists()
    assert list((killed / "rounds/0001/rollouts").glob(".done-shard-*"))
    done = command("resume", killed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(killed) == digests(alone)
