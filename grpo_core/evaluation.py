"""Evaluation on held-out prompts: greedy accuracy, avg@k and pass@k."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from grpo_core.generation.engine import (
    Completion,
    Engine,
    GenerationConfig,
    Request,
    SamplingParams,
    generate_batches,
)
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.schemas import EVALUATION, Progress, no_progress, shifted
from grpo_core.seeding import hash64


class EvaluationConfig(BaseModel):
    """When and how the policy is measured on the prompts that training never sees."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: int = Field(
        5, ge=1, description="Evaluate after every so many rounds, besides before the first and after the last."
    )
    samples: int = Field(
        4, ge=0, description="k of avg@k and pass@k: samples a prompt at the training temperature; 0 leaves them out."
    )
    batch_prompts: int = Field(32, ge=1, description="Prompts in one batch; a fixed batch keeps results exact.")


def evaluate(
    engine: Engine,
    reward: RewardFunction,
    prompts: pa.Table,
    config: EvaluationConfig,
    generation: GenerationConfig,
    *,
    seed: int,
    progress: Progress = no_progress,
) -> tuple[pa.Table, dict[str, float]]:
    """Answer every prompt greedily and ``config.samples`` times by sampling, and score the answers.

    The seeds depend on the prompt alone, not on the round, so that two policies are compared on the same draws.

    Args:
        prompts: rows of ``schemas.PROMPTS``.
        seed: the run's seed.

    Returns:
        Rows of ``schemas.EVALUATION`` and the metrics of :func:`summarise`.
    """
    rows = prompts.select(["prompt_id", "source", "prompt", "gold", "prompt_ids", "extra"]).to_pylist()
    modes = [("greedy", 1, 0.0), ("sample", config.samples, generation.temperature)]
    total = sum(count for _, count, _ in modes) * len(rows)
    answers: list[tuple[dict[str, Any], str, int, Completion]] = []
    for mode, count, temperature in modes:
        sampling = SamplingParams(
            temperature=temperature,
            top_p=generation.top_p if temperature else 1.0,
            top_k=generation.top_k if temperature else 0,
            max_new_tokens=generation.max_new_tokens,
        )
        parts = [
            rows[at : at + config.batch_prompts] for at in range(0, len(rows) if count else 0, config.batch_prompts)
        ]
        batches = [
            [
                Request(
                    prompt_id=row["prompt_id"],
                    prompt_ids=row["prompt_ids"],
                    seeds=[hash64(seed, "evaluation", row["prompt_id"], index) for index in range(count)],
                )
                for row in part
            ]
            for part in parts
        ]
        made = generate_batches(engine, batches, sampling, shifted(progress, len(answers), total))
        for part, groups in zip(parts, made, strict=True):
            for row, completions in zip(part, groups, strict=True):
                answers += [(row, mode, index, completion) for index, completion in enumerate(completions)]
    scores = reward(
        [sample_of(row, mode, index, answer, generation.max_new_tokens) for row, mode, index, answer in answers]
    )
    table = pa.Table.from_pylist(
        [
            {
                "prompt_id": row["prompt_id"],
                "mode": mode,
                "sample_index": index,
                "completion_ids": completion.token_ids,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "verdict": score.verdict.value,
                "extracted": score.extracted,
                "gold": row["gold"],
                "reward": score.reward,
            }
            for (row, mode, index, completion), score in zip(answers, scores, strict=True)
        ],
        schema=EVALUATION,
    )
    by_mode: dict[str, list[list[Score]]] = {"greedy": [], "sample": []}
    for (_, mode, index, _), score in zip(answers, scores, strict=True):
        if index == 0:
            by_mode[mode].append([])
        by_mode[mode][-1].append(score)
    return table, summarise(by_mode["greedy"], by_mode["sample"], config.samples)


def sample_of(row: Mapping[str, Any], mode: str, index: int, answer: Completion, max_new_tokens: int) -> Sample:
    """An answer to a held-out prompt as a reward takes it; ``row`` is one of ``schemas.PROMPTS``."""
    return Sample(
        id=f"{row['prompt_id']}/{mode}/{index}",
        response=answer.text,
        gold=row["gold"],
        prompt=row["prompt"],
        finish_reason=answer.finish_reason,
        extra=json.loads(row["extra"] or "{}"),
        group=f"{row['prompt_id']}/{mode}",
        completion_tokens=len(answer.token_ids),
        max_new_tokens=max_new_tokens,
        prompt_ids=row["prompt_ids"],
        completion_ids=answer.token_ids,
        source=row["source"],
    )


def summarise(greedy: Sequence[Sequence[Score]], sampled: Sequence[Sequence[Score]], k: int) -> dict[str, float]:
    """``accuracy`` with its standard error, ``avg_at_k``, ``pass_at_k`` and ``unchecked``, from scores per prompt.

    A check that failed (timeout, error, missing) says nothing about the policy: it is counted in ``unchecked`` and left
    out of the averages, and a prompt without any finding is left out with it.
    """
    found = [[s.verdict is Verdict.OK for s in group if s.verdict.is_finding] for group in greedy]
    right = np.array([group[0] for group in found if group], dtype=np.float64)
    metrics = {"unchecked": float(sum(not s.verdict.is_finding for group in [*greedy, *sampled] for s in group))}
    if right.size:
        metrics["accuracy"] = float(right.mean())
        metrics["accuracy_stderr"] = float(np.sqrt(right.mean() * (1 - right.mean()) / right.size))
    groups = [[s.verdict is Verdict.OK for s in group if s.verdict.is_finding] for group in sampled]
    groups = [group for group in groups if group]
    if k and groups:
        metrics[f"avg_at_{k}"] = float(np.mean([np.mean(group) for group in groups]))
        metrics[f"pass_at_{k}"] = float(np.mean([any(group) for group in groups]))
    return metrics
