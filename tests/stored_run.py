"""A run folder with prompts and rollouts in it, as if they had been generated: for tests of what comes after."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from grpo_core.artifacts import ArtifactWriter
from grpo_core.config import RunConfig
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import PROMPTS, REJECTED, ROLLOUTS, rollout_id
from tasks.run import Run, create_or_open, round_folder


def store_run(
    folder: Path,
    texts: Mapping[int, Mapping[str, Sequence[str]]],
    prompts_have: Mapping[str, Mapping[str, str]] | None = None,
    **config: Any,
) -> Run:
    """A run with ``texts[round][prompt_id]``, a shard a prompt. Every gold is 42; token ids are the texts' bytes.

    ``prompts_have[prompt_id]`` are cells of the prompt's row.
    """
    run, _ = create_or_open(str(folder), RunConfig.model_validate(config))
    prompt_ids = sorted({prompt for groups in texts.values() for prompt in groups})
    prompts = [
        {"prompt_id": p, "source": "s", "source_row": n, "prompt": f"{p}?", "gold": "42", "prompt_ids": [1, 2]}
        | dict((prompts_have or {}).get(p, {}))
        for n, p in enumerate(prompt_ids)
    ]
    tables = {
        "train.parquet": pa.Table.from_pylist(prompts, schema=PROMPTS),
        "eval.parquet": PROMPTS.empty_table(),
        "rejected.parquet": REJECTED.empty_table(),
    }
    _write(run, "prompts", tables, train=float(len(prompts)), eval=0.0)
    for number, groups in texts.items():
        shards = {
            f"shard-{place:05d}.parquet": pa.Table.from_pylist(
                [rollout_row(number, prompt, index, text) for index, text in enumerate(group)], schema=ROLLOUTS
            )
            for place, (prompt, group) in enumerate(groups.items())
        }
        _write(run, round_folder(number, "rollouts"), shards)
    return run


def rollout_row(number: int, prompt: str, index: int, text: str) -> dict[str, Any]:
    """A row of ``schemas.ROLLOUTS``."""
    ids = list(text.encode())
    return {
        "rollout_id": rollout_id(number, prompt, index),
        "round": number,
        "prompt_id": prompt,
        "sample_index": index,
        "prompt_ids": [1, 2],
        "completion_ids": ids,
        "logprobs": [-1.0] * len(ids),
        "text": text,
        "finish_reason": "stop",
        "seed": index,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_new_tokens": 20,
        "policy_digest": "d",
        "engine": "e",
        "engine_version": "1",
    }


def _write(run: Run, folder: str, tables: Mapping[str, pa.Table], **metrics: float) -> None:
    writer = ArtifactWriter(run.artifact(folder), Fingerprint("test", 0, 1, {}, {}))
    for name, table in tables.items():
        writer.write_table(name, table)
    writer.finish(metrics)
