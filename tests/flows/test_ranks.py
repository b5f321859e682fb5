"""A real run whose update is shared by two processes, killed in both ways in which one can die."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
from support import TINY, digests

TWO = ("--set", "update.ranks=2", "--rounds", "1")


def left_of(run: Path) -> list[str]:
    """Command lines of processes that work in a run's folder; they have a while to end."""
    deadline = time.monotonic() + 20
    while True:
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if str(run) in line and "grpo_core.policy" in line:
                found.append(line)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.distributed
def test_killed_by_ranks_and_as_a_whole_it_ends_with_the_same_bytes(command, finished_run, tmp_path):
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    done = command("train", TINY, "--run-dir", undisturbed, *TWO)
    assert done.returncode == 0, done.stdout + done.stderr

    whole = command("train", TINY, "--run-dir", run, *TWO, fault="progress:update_policy:1@2")
    assert whole.returncode == -signal.SIGKILL, whole.stdout + whole.stderr
    assert left_of(run) == []

    rank = command("resume", run, fault="rank-step:1:2")
    told = " ".join((rank.stdout + rank.stderr).split())
    assert rank.returncode == 2, told
    assert "Rank 1 of the update's 2 was killed by SIGKILL, so all were ended; run the same command again" in told
    assert "Traceback" not in told
    assert left_of(run) == []
    assert [path.name for path in (run / "rounds/0001/update_checkpoint").iterdir()] == ["step-000001"]

    resumed = command("resume", run, fault="rank-step:*:1")  # would kill if step one were done again
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert digests(run) == digests(undisturbed)
    assert list(run.rglob(".tmp-*")) == []

    # What two ranks have made is what one makes, so that nothing is done again with one.
    kinds = ("policy", "trainer_state", "reference", "steps")
    for kind in kinds:
        one, two = (json.loads((r / f"rounds/0001/{kind}/manifest.json").read_text()) for r in (finished_run, run))
        assert one["fingerprint"] == two["fingerprint"]
        assert one["metrics"] == pytest.approx(two["metrics"], rel=1e-5, abs=1e-6)
