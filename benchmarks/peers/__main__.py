"""One GRPO step by TRL 1.16 and by this project, side by side: ``.venv-parity/bin/python -m benchmarks.peers``.

The same model (SmolLM2-135M, float32), prompts, samples, lengths and hyperparameters, KL included. Each contestant runs
in a process of its own, in turn, several times over, two steps each, of which the second counts: then moments exist and
memory has been touched, as in the middle of a training. Printed are medians: seconds of each stage, seconds a thousand
completion tokens, peak memory, and the other's over ours. transformers' ``generate`` runs beside them, rollouts alone.
Needs TRL (``make parity`` installs it); ``--only ours generate`` runs without, and without updates, which ``generate``
has none of. About eight minutes a repetition on two cores, most of them TRL's.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.peers.child import ask
from benchmarks.peers.work import Measured, Work, save_model

NAMES = {"trl": "TRL", "ours": "ours", "generate": "generate"}
STEPS = 2
STAGES = ("rollouts", "rewards", "update")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peer-batch", type=int, default=16, help="sequences of a forward pass of TRL's")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    chosen = parser.parse_args()
    out = Console()
    updates = set(chosen.only) != {"ours", "generate"}
    found: dict[str, list[Measured]] = {name: [] for name in chosen.only}
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch))
        turns = [(seed, name) for seed in range(chosen.repetitions) for name in chosen.only]
        for seed, name in track(turns, "steps", console=out, disable=not out.is_terminal):
            shape = (chosen.prompts, chosen.group, chosen.new_tokens, chosen.threads)
            work = Work(scratch, *shape, seed, chosen.peer_batch, rounds=STEPS, updates=updates)
            found[name].append(Measured(**ask(f"benchmarks.peers.{name}", work)))
    out.print(_table(found))


def _table(found: dict[str, list[Measured]]) -> Table:
    table = Table(
        "median of one step", *(NAMES[name] for name in found), *(f"{NAMES[n]} / ours" for n in _others(found))
    )

    def row(label: str, value: Callable[[Measured], float | None], form: str = "{:.2f}") -> None:
        medians = {name: _median([value(one) for one in ones]) for name, ones in found.items()}
        ours = medians.get("ours")
        ratios = [m / ours if (m := medians[name]) is not None and ours else None for name in _others(found)]
        cells = ["" if m is None else form.format(m) for m in medians.values()]
        table.add_row(label, *cells, *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios))

    for stage in STAGES:
        row(f"{stage}, s", lambda one, stage=stage: one.seconds.get(stage))
    row("whole step, s", lambda one: one.whole if "update" in one.seconds else None)
    row("completion tokens", lambda one: one.completion_tokens, "{:,.0f}")
    row("seconds of rollouts per 1,000 tokens", lambda one: 1000 * one.seconds["rollouts"] / one.completion_tokens)
    row("seconds of update per 1,000 tokens", lambda one: _per_thousand(one, "update"))
    row("peak memory, GB", lambda one: one.peak_bytes / 1e9)
    return table


def _per_thousand(one: Measured, stage: str) -> float | None:
    return 1000 * one.seconds[stage] / one.completion_tokens if stage in one.seconds else None


def _others(found: dict[str, list[Measured]]) -> list[str]:
    return [name for name in found if name != "ours" and "ours" in found]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


if __name__ == "__main__":
    main()
