"""Time and rollouts to 80 % held-out accuracy, by TRL 1.16 and by this project: ``python -m benchmarks.learning``.

SmolLM2-135M-Instruct learns sums of one-digit numbers: 16 prompts a round, 8 answers each, two optimiser steps, KL; the
same prompts, counts and hyperparameters for both. Evaluation (greedy, 36 sums that are never trained on) is not
counted. Run it where TRL is installed: ``.venv-parity/bin/python -m benchmarks.learning`` (``make parity`` makes it).
About half an hour a seed on two cores, most of it TRL's; ``--only ours`` takes a few minutes.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.learning.tell import GOAL
from benchmarks.peers.child import ask
from benchmarks.peers.work import Work, save_model


def main() -> None:
    """Train, seed by seed in turn, and print when each reached the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=16, help="at most")
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="+", choices=("trl", "ours"), default=["trl", "ours"])
    chosen = parser.parse_args()
    out = Console()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen.only}
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch))
        turns = [(seed, name) for seed in range(chosen.seeds) for name in chosen.only]
        for seed, name in track(turns, "runs", console=out, disable=not out.is_terminal):
            work = Work(
                scratch, prompts=16, group=8, new_tokens=chosen.new_tokens, threads=chosen.threads, seed=seed,
                peer_batch=16, minibatches=2, learning_rate=chosen.learning_rate, rounds=chosen.rounds,
            )  # fmt: skip
            curve = ask(f"benchmarks.learning.{name}", work)
            found[name].append(curve)
            out.print(f"{name}, seed {seed}: {curve['accuracy'][-1]:.0%} after {curve['seconds'][-1]:.0f} s")
    out.print(_table(found))


def _table(found: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(
        "", "seed", "accuracy before", "after each round", f"seconds to {GOAL:.0%}", f"rollouts to {GOAL:.0%}"
    )
    for name, curves in found.items():
        for seed, curve in enumerate(curves):
            before, *after = (f"{value:.0%}" for value in curve["accuracy"])
            reached = curve["accuracy"][-1] >= GOAL
            ends = (f"{curve['seconds'][-1]:.0f}", f"{curve['rollouts'][-1]:,}") if reached else ("never", "never")
            table.add_row(name, str(seed), before, " ".join(after), *ends)
        times = [c["seconds"][-1] if c["accuracy"][-1] >= GOAL else float("inf") for c in curves]
        table.add_row(name, "median", "", "", f"{statistics.median(times):.0f}", "")
        table.add_section()
    if len(found) == 2:
        ratio = statistics.median(
            theirs["seconds"][-1] / ours["seconds"][-1]
            for theirs, ours in zip(found["trl"], found["ours"], strict=True)
        )
        table.add_row("TRL / ours", "median", "", "", f"{ratio:.2f}", "")
    return table


if __name__ == "__main__":
    main()
