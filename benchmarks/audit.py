"""How fast a run answers: ``python -m benchmarks.audit``.

Makes a run of 100,000 rollouts of about 300 tokens in 100 rounds in a temporary folder (250 MB, half a minute), asks it
by the command line, as a user would, and prints the median wall seconds of each question, Python's start included.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from grpo_core.artifacts import Manifest, parquet_writer
from grpo_core.schemas import ADVANTAGES, PROMPTS, REWARDS, ROLLOUTS
from grpo_core.storage import FileRecord

ROUNDS, PROMPTS_PER_ROUND, GROUP = 100, 125, 8
SHARD_GROUPS = 8  # the config's default: many small files
TRAIN_PROMPTS, TOKENS = 2000, 300
REPETITIONS = 3
WORDS = ["the", "sum", "of", "both", "sides", "is", "then", "so", "we", "find", "that", "x", "equals", "carry", "one"]
VERDICTS = ["ok", "wrong", "unparsable", "timeout"]


def prompt_id(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


def make_prompts() -> pa.Table:
    """The training prompts, of two sources."""
    rows = [
        {"prompt_id": prompt_id(n), "source": f"set-{n % 2}", "source_row": n // 2, "prompt": f"What is {n} + {n}?",
         "gold": str(2 * n), "prompt_ids": list(range(20))}
        for n in range(TRAIN_PROMPTS)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=PROMPTS)


def make_groups(round_number: int, numbers: list[int], rng: np.random.Generator) -> dict[str, pa.Table]:
    """The rollouts, rewards and advantages of some prompts' groups."""
    count = len(numbers) * GROUP
    ids = [prompt_id(n) for n in numbers for _ in range(GROUP)]
    samples = np.tile(np.arange(GROUP, dtype=np.int32), len(numbers))
    key = {
        "rollout_id": [f"{round_number:04d}/{p}/{s}" for p, s in zip(ids, samples, strict=True)],
        "round": np.full(count, round_number, np.int32),
        "prompt_id": ids,
        "sample_index": samples,
    }
    lengths = rng.integers(TOKENS // 2, TOKENS * 3 // 2, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    words = rng.integers(0, len(WORDS), offsets[-1])
    verdict = rng.choice(len(VERDICTS), count, p=[0.4, 0.4, 0.15, 0.05])
    reward = np.where(verdict == 0, 1.0, 0.0) + 0.1 * rng.integers(0, 2, count)
    reward = np.where(verdict == 3, np.nan, reward)
    groups = reward.reshape(-1, GROUP)
    mean, std = np.nanmean(groups, axis=1), np.nanstd(groups, axis=1)
    advantage = np.nan_to_num((groups - mean[:, None]) / (std[:, None] + 1e-6)).reshape(-1)
    rollouts = {
        **key,
        "prompt_ids": [list(range(20))] * count,
        "completion_ids": pa.ListArray.from_arrays(offsets, rng.integers(0, 50_000, offsets[-1], np.int32)),
        "logprobs": pa.ListArray.from_arrays(offsets, -rng.random(offsets[-1], np.float32)),
        "text": [" ".join(WORDS[w] for w in words[a:b]) for a, b in pairwise(offsets)],
        "finish_reason": ["stop"] * count,
        "seed": rng.integers(0, 2**63, count).astype(np.uint64),
        "temperature": np.ones(count, np.float32),
        "top_p": np.ones(count, np.float32),
        "top_k": np.zeros(count, np.int32),
        "max_new_tokens": np.full(count, 2 * TOKENS, np.int32),
        "policy_digest": ["d" * 64] * count,
        "engine": ["made"] * count,
        "engine_version": ["1"] * count,
    }
    rewards = {
        **key,
        "verdict": [VERDICTS[v] for v in verdict],
        "extracted": [str(int(w)) for w in words[offsets[:-1]]],
        "gold": [str(2 * n) for n in numbers for _ in range(GROUP)],
        "components": [[("correct", 1.0 if v == 0 else 0.0), ("box", 0.0)] for v in verdict],
        "reward": pa.array(reward, from_pandas=True),
        "detail": [""] * count,
    }
    advantages = {
        **key,
        "reward": pa.array(reward, from_pandas=True),
        "group_size": np.full(count, GROUP, np.int32),
        "group_valid": np.repeat(np.isfinite(groups).sum(axis=1).astype(np.int32), GROUP),
        "group_mean": np.repeat(mean, GROUP),
        "group_std": np.repeat(std, GROUP),
        "zero_variance": np.repeat(std == 0, GROUP),
        "advantage": advantage,
        "in_loss": np.isfinite(reward) & np.repeat(std > 0, GROUP),
    }
    slim = pa.schema([field for field in ADVANTAGES if field.name in advantages])
    return {
        "rollouts": pa.table(rollouts, schema=ROLLOUTS),
        "rewards": pa.table(rewards, schema=REWARDS),
        "advantages": pa.table(advantages, schema=slim),
    }


def store(folder: Path, tables: Mapping[str, pa.Table]) -> None:
    """An artifact as a stage leaves it, without the fsyncs and the digests, which ``audit`` doesn't look at."""
    folder.mkdir(parents=True)
    for name, table in tables.items():
        parquet_writer(table)(folder / name)
    files = {name: FileRecord("", (folder / name).stat().st_size) for name in tables}
    rows = sum(table.num_rows for table in tables.values())
    (folder / "manifest.json").write_bytes(Manifest("", {}, rows, files, {}, 0.0).to_bytes())


def make_run(folder: Path, out: Console) -> None:
    """A whole run's tables with their manifests."""
    rng = np.random.default_rng(0)
    store(folder / "prompts", {"train.parquet": make_prompts()})
    (folder / "config.yaml").write_text("name: made\n")
    for number in track(range(1, ROUNDS + 1), "making a run", console=out, disable=not out.is_terminal):
        chosen = [int(n) for n in rng.choice(TRAIN_PROMPTS, PROMPTS_PER_ROUND, replace=False)]
        shards: dict[str, dict[str, pa.Table]] = {}
        for shard, start in enumerate(range(0, len(chosen), SHARD_GROUPS)):
            for name, table in make_groups(number, chosen[start : start + SHARD_GROUPS], rng).items():
                shards.setdefault(name, {})[f"shard-{shard:05d}.parquet"] = table
        for name, tables in shards.items():
            store(folder / f"rounds/{number:04d}/{name}", tables)


def questions(folder: Path) -> dict[str, list[str]]:
    """What is asked, by the words that the table shows."""
    shard = pq.read_table(folder / f"rounds/{ROUNDS // 2:04d}/rewards/shard-00000.parquet")
    prompt, rollout = shard["prompt_id"][0].as_py(), shard["rollout_id"][0].as_py()
    return {
        "overview by round": [],
        "--prompt ID": ["--prompt", prompt],
        "--verdict timeout": ["--verdict", "timeout"],
        "--worst 20": ["--worst", "20"],
        "--best 20 --verdict wrong": ["--best", "20", "--verdict", "wrong"],
        "--round 40-60": ["--round", "40-60"],
        "--source set-1:3": ["--source", "set-1:3"],
        "--rollout ID": ["--rollout", rollout],
        "--sql: prompts never solved": [
            "--sql",
            "select prompt_id, count(*) as n from audit group by 1 having count(*) filter (verdict = 'ok') = 0",
        ],
        "--sql: mean length by verdict": ["--sql", "select verdict, avg(tokens) from audit group by 1"],
    }


def ask(folder: Path, arguments: list[str]) -> float:
    """Wall seconds of one command. Raises CalledProcessError when it fails."""
    began = time.monotonic()
    code = "from flows.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", code, "audit", str(folder), *arguments], check=True, stdout=subprocess.DEVNULL
    )
    return time.monotonic() - began


def main() -> None:
    """Measure and print a table."""
    out = Console()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        make_run(folder, out)
        files = sum(1 for _ in folder.rglob("*.parquet"))
        out.print(f"{ROUNDS} rounds, {ROUNDS * PROMPTS_PER_ROUND * GROUP} rollouts, {files} Parquet files")
        table = Table("question", "median s", "slowest s", box=None)
        for words, arguments in questions(folder).items():
            seconds = [ask(folder, arguments) for _ in range(REPETITIONS)]
            table.add_row(words, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}")
        out.print(table)


if __name__ == "__main__":
    main()
