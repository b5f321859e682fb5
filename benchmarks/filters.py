"""The filters on real data: ``python -m benchmarks.filters [TRAIN=EVAL ...]``, two JSONL files in each pair.

The default is GSM8K against its test set and MATH against MATH-500, in ``../shared/data`` beside the repository. A row
has ``question`` or ``problem``, ``answer``, and perhaps ``solution``, against which the math reward holds the gold.
Everything is on but what drops a kind of problem; the language is English. Prompts become ids by the tiny model's byte
tokenizer. Memory is the peak of this process so far; the reward's workers, two processes, take about 100 MB each.
"""

import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.prompts.filters import FilteredPrompts, filter_prompts
from grpo_core.prompts.filters_config import FiltersConfig
from grpo_core.prompts.gold_check import GoldCheck
from grpo_core.prompts.sources import SourceRow
from grpo_core.rewards.config import RewardConfig
from grpo_core.tiny import byte_tokenizer

DATA = Path(__file__).resolve().parents[2] / "shared/data"
PAIRS = [f"{DATA}/gsm8k/train.jsonl={DATA}/gsm8k/test.jsonl", f"{DATA}/math/train.jsonl={DATA}/math/math500.jsonl"]


def read_rows(path: Path) -> Iterator[SourceRow]:
    """The rows of a file."""
    with path.open(encoding="utf-8") as lines:
        for index, line in enumerate(lines):
            row = json.loads(line)
            yield SourceRow(index, row.get("question", row.get("problem")), row["answer"], row.get("solution"))


def filtered(train: Path, evaluation: Path) -> FilteredPrompts:
    """One pair, read and filtered end to end."""
    source, held = SourceConfig(source=str(train), name="train"), SourceConfig(source=str(evaluation), name="eval")
    config = DataConfig(
        sources=[source],
        eval_sources=[held],
        eval_size=0,
        max_prompt_tokens=8192,
        filters=FiltersConfig(language="en"),
    )
    check = GoldCheck(RewardConfig())
    return filter_prompts(
        [(source, read_rows(train))], [(held, read_rows(evaluation))], config, byte_tokenizer(), 0, check=check
    )


def main(pairs: Annotated[list[str] | None, typer.Argument(help="TRAIN=EVAL, paths of two files.")] = None) -> None:
    """Measures and prints one table."""
    table = Table(title="Filters")
    for heading in ("", "rows", "train", "eval", "refused", "seconds", "peak GB"):
        table.add_column(heading, justify="right" if heading not in ("", "refused") else "left")
    for pair in pairs or PAIRS:
        train, _, evaluation = pair.partition("=")
        if not evaluation:
            raise typer.BadParameter(f"'{pair}' is not of the form TRAIN=EVAL")
        started = time.perf_counter()
        found = filtered(Path(train), Path(evaluation))
        seconds = time.perf_counter() - started
        table.add_row(
            f"{Path(train).parent.name}/{Path(train).name}",
            f"{found.train.num_rows + found.eval.num_rows + found.rejected.num_rows:,}",
            f"{found.train.num_rows:,}",
            f"{found.eval.num_rows:,}",
            "\n".join(f"{reason} {count}" for reason, count in found.counts.items()) or "none",
            f"{seconds:.1f}",
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
