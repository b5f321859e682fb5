"""Kill a tiny real run again and again, resume it, compare it with one that was left alone: ``make torture N=200``.

Half of the kills come at the k-th fault point that the process passes, the others after a random time, by a seed.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # run by `make torture`, without pytest's settings

from launcher import Launcher  # noqa: E402
from stores import templates  # noqa: E402
from support import TINY, digests, mlflow_record, prefect_server  # noqa: E402
from warm import running  # noqa: E402

MOST_POINTS = 120  # a whole tiny run passes about three times as many


@dataclass(slots=True)
class Tally:
    """What came of it."""

    kills: int = 0
    runs: int = 0
    identical: int = 0


def torture(launcher: Launcher, reference: Path, folder: Path, kills: int, seed: int, tell: Console) -> Tally:
    """Kill runs in ``folder`` until so many kills are done; each run, once it ends, is compared with ``reference``."""
    chance, tally = random.Random(seed), Tally()
    bar = iter(track(range(kills), "kills", console=tell, disable=not tell.is_terminal))
    expected = digests(reference), mlflow_record(reference)
    while tally.kills < kills:
        run = folder / f"run-{tally.runs:03d}" / "run"
        run.parent.mkdir(parents=True)
        while _killed(launcher, run, chance):
            tally.kills += 1
            next(bar, None)
            if tally.kills >= kills:
                again = ("resume", run) if (run / "config.yaml").exists() else ("train", TINY, "--run-dir", run)
                done = launcher.run(*again, folder=folder)
                if done.returncode:
                    tell.print(f"{run}: resume ended with {done.returncode}: {done.stderr}")
                break
        tally.runs += 1
        if (digests(run), mlflow_record(run)) == expected:
            tally.identical += 1
            shutil.rmtree(run.parent)
        else:
            tell.print(f"{run} differs from the run that was left alone (kept to look at)")
    return tally


def _killed(launcher: Launcher, run: Path, chance: random.Random) -> bool:
    """Go on with a run and kill it somewhere; False when it came to its end before."""
    fault = f"*@{chance.randint(1, MOST_POINTS)}" if chance.random() < 0.5 else ""
    pid = launcher.start(
        "train", TINY, "--run-dir", run, folder=run.parent, log=run.parent / "log", GRPO_ROUNDS_FAULT=fault
    )
    if not fault:
        time.sleep(chance.uniform(0.0, 6.0))
        os.kill(pid, signal.SIGKILL)  # not yet waited for, so the id is still its own
    status = launcher.wait(pid)
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{run}: train ended with {status}: {(run.parent / 'log.err').read_text()}")
    return status != 0


def main(kills: int, seed: int) -> int:
    """Run it all and report; 1 when any run differs."""
    tell = Console()
    began = time.monotonic()
    with templates(), running(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        with prefect_server(folder / "prefect") as environment:
            launcher = Launcher(environment)
            try:
                reference = folder / "alone/run"
                reference.parent.mkdir()
                done = launcher.run("train", TINY, "--run-dir", reference, folder=folder)
                if done.returncode:
                    tell.print(done.stdout + done.stderr)
                    return 1
                tally = torture(launcher, reference, folder / "killed", kills, seed, tell)
            finally:
                launcher.close()
    minutes = (time.monotonic() - began) / 60
    tell.print(
        f"{tally.kills} kills in {tally.runs} runs, {tally.identical} identical, {minutes:.1f} min (seed {seed})."
    )
    return 0 if tally.identical == tally.runs else 1


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
