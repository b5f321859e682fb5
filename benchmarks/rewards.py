"""Answers per second of the math reward against serial math-verify: ``python -m benchmarks.rewards [DATA]``.

DATA is a folder with ``answers/gsm8k_model_solutions.jsonl`` and ``answers/qwen25_math_cot_100x8.jsonl`` (labelled real
responses); the default is ``../shared/data`` beside the repository. Each figure is the median of three runs over the
same responses. math-verify runs as its authors have it, in one process, with its own extraction and its timeouts.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from math_verify import parse, verify
from rich.console import Console
from rich.table import Table

from grpo_core.rewards.extract import final_answer
from grpo_core.rewards.math import quick_check
from grpo_core.rewards.verdict import Verdict
from grpo_core.rewards.workers import WorkerPool

ROOT = Path(__file__).resolve().parents[1]
FILES = ("answers/gsm8k_model_solutions.jsonl", "answers/qwen25_math_cot_100x8.jsonl")
RUNS = 3

Row = tuple[str, str, bool]
"""A response, its gold, and whether people say that it is right."""

Outcome = tuple[list[bool], list[float], float]
"""Whether each row was paid, the seconds of each, and the seconds of all."""


def read_rows(data: Path, rows: int) -> list[Row]:
    """``rows`` labelled responses of each file, spread evenly over it."""
    found: list[Row] = []
    for name in FILES:
        lines = [json.loads(line) for line in (data / name).read_text().splitlines()]
        step = max(1, len(lines) // rows)
        found += [(line["response"], line["gold"], line["correct"]) for line in lines[::step][:rows]]
    return found


def serial_math_verify(rows: list[Row]) -> Outcome:
    """Each response by itself: parse the gold, parse the response, verify."""
    paid, seconds = [], []
    started = time.perf_counter()
    for response, gold, _ in rows:
        began = time.perf_counter()
        paid.append(bool(verify(parse(f"${gold}$"), parse(response))))
        seconds.append(time.perf_counter() - began)
    return paid, seconds, time.perf_counter() - started


def with_pool(pool: WorkerPool, rows: list[Row]) -> Outcome:
    """As the reward does it: what is quick in this process, the rest in one call of the pool."""
    paid, seconds = [False] * len(rows), [0.0] * len(rows)
    pairs: dict[int, tuple[str, str]] = {}
    started = time.perf_counter()
    for place, (response, gold, _) in enumerate(rows):
        began = time.perf_counter()
        found = final_answer(response)
        quick = quick_check(found.answer, gold) if found is not None else (Verdict.UNPARSABLE, "")
        if quick is None and found is not None:
            pairs[place] = (found.answer, gold)
        elif quick is not None:
            paid[place] = quick[0] is Verdict.OK
        seconds[place] = time.perf_counter() - began
    for place, result in zip(pairs, pool.check(list(pairs.values())), strict=True):
        paid[place] = result.verdict is Verdict.OK
        seconds[place] += result.seconds
    return paid, seconds, time.perf_counter() - started


def median_of(runs: int, once: Callable[[], Outcome]) -> Outcome:
    """The run with the median time of ``runs``."""
    return sorted((once() for _ in range(runs)), key=lambda outcome: outcome[2])[runs // 2]


def main(
    data: Annotated[Path, typer.Argument(help="Folder of the labelled responses.")] = ROOT.parent / "shared/data",
    rows: Annotated[int, typer.Option(min=1, help="Responses of each file.")] = 400,
    workers: Annotated[int, typer.Option(min=1, help="Checking processes.")] = 2,
) -> None:
    """Measures and prints one table."""
    console = Console()
    missing = [name for name in FILES if not (data / name).is_file()]
    if missing:
        console.print(
            f"{data / missing[0]} is not there; name a folder that holds {' and '.join(FILES)}.", soft_wrap=True
        )
        raise typer.Exit(2)
    cases = read_rows(data, rows)
    pool = WorkerPool(workers=workers, timeout_seconds=2.0, retries=0)
    try:
        warm = [(f"x + {place}", f"y + {place}") for place in range(4 * workers)]
        pool.check(warm)  # start the processes and their imports

        def uncached() -> Outcome:
            pool.forget()
            return with_pool(pool, cases)

        parse("$1$")  # its imports and patterns
        measured = {
            "serial math-verify": median_of(RUNS, lambda: serial_math_verify(cases)),
            f"reward, {workers} workers": median_of(RUNS, uncached),
            "reward, cached": median_of(RUNS, lambda: with_pool(pool, cases)),
        }
    finally:
        pool.close()
    console.print(_table(cases, measured))


def _table(cases: list[Row], measured: dict[str, Outcome]) -> Table:
    table = Table(title=f"{len(cases)} labelled responses, medians of {RUNS} runs")
    for heading in ("", "answers/s", "ratio", "p50 ms", "p99 ms", "max ms", "right"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    base = next(iter(measured.values()))[2]
    for name, (paid, seconds, total) in measured.items():
        cuts = statistics.quantiles(seconds, n=100)
        right = sum(outcome == label for outcome, (_, _, label) in zip(paid, cases, strict=True))
        table.add_row(
            name,
            f"{len(cases) / total:,.0f}",
            f"{base / total:.1f}x",
            f"{cuts[49] * 1e3:.2f}",
            f"{cuts[98] * 1e3:.2f}",
            f"{max(seconds) * 1e3:.1f}",
            f"{right}/{len(cases)}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
