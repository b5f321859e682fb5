"""What orchestration costs: ``python -m benchmarks.overhead``.

Trains the toy of configs/tiny.yaml with few and with many rounds, by the command line and Prefect's own temporary
server, and takes from the wall time what the stages themselves took (their timings.json). The first run finds neither
Prefect's nor MLflow's database and makes them; the others are compared with each other. Then it asks the finished run
to go on, which only proves what lies there. Medians of several repetitions; about six minutes on two cores.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

TINY = Path(__file__).resolve().parents[1] / "configs/tiny.yaml"
FEW, MANY = 2, 10
RUNS = {"first": FEW, "few": FEW, "many": MANY}  # rounds by folder, in this order
REPETITIONS = 3


def run(*arguments: object, folder: Path) -> float:
    """Wall seconds of one command. Raises CalledProcessError when it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PREFECT_API_URL",)}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    subprocess.run(
        [Path(sys.executable).parent / "grpo-rounds", *map(str, arguments)],
        cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.monotonic() - began


def stage_seconds(folder: Path) -> float:
    """What all stages of a run took by their own clocks."""
    files = [*folder.rglob("timings.json"), *folder.rglob("*.timings.json")]
    # An update leaves three artifacts and says its time in each.
    twice = ("trainer_state", "steps")
    return sum(json.loads(file.read_bytes())["seconds"] for file in files if file.parent.name not in twice)


def outside_of_stages(folder: Path, name: str, rounds: int) -> float:
    """Wall seconds of a run without its stages'."""
    target = folder / name
    return run("train", TINY, "--run-dir", target, "--rounds", rounds, folder=folder) - stage_seconds(target)


def main() -> None:
    """Measure and print a table."""
    out = Console()
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    for _ in track(range(REPETITIONS), "repetitions", console=out, disable=not out.is_terminal):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch)
            first, few, many = (outside_of_stages(folder, name, rounds) for name, rounds in RUNS.items())
            per_round = (many - few) / (MANY - FEW)
            note("a round: Prefect, MLflow, manifests, checks", per_round)
            note("a start: imports, Prefect's server, first contact with MLflow", few - FEW * per_round)
            note("the first start, which makes their databases", first - FEW * per_round)
            again = run("resume", folder / "many", folder=folder)
            note(f"resume of a run whose {MANY} rounds are done", again)
            fewer = run("resume", folder / "few", folder=folder)
            note("thereof a finished round: every byte proven", (again - fewer) / (MANY - FEW))
    table = Table("seconds outside of the stages", "median", "least", "most")
    for name, values in rows.items():
        table.add_row(name, f"{statistics.median(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}")
    out.print(table)


if __name__ == "__main__":
    main()
