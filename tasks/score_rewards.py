"""Stage: verdicts and rewards for the round's rollouts, a shard of rewards for a shard of rollouts."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from prefect import task

from grpo_core import interrupt
from grpo_core.artifacts import read_parquet
from grpo_core.diagnostics import length_by_verdict, reward_metrics
from grpo_core.rewards.score import build_reward, reward_fingerprint
from grpo_core.rewards.verdict import Sample
from grpo_core.schemas import PROMPTS, REWARDS, ROLLOUTS, Progress
from tasks import filter_prompts
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 1


def reward_key(run: Run) -> Mapping[str, Any]:
    """What of the reward decides scores: its config, and its code by digest."""
    config = run.config.reward
    return {"reward": config.model_dump(mode="json", exclude={"workers"}), "reward_code": reward_fingerprint(config)}


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    writer = writers["rewards"]
    train = read_parquet(run.store, f"{filter_prompts.FOLDER}/train.parquet", PROMPTS).select(
        ["prompt_id", "prompt", "gold"]
    )
    prompts = {row["prompt_id"]: row for row in train.to_pylist()}
    source = run.artifact(round_folder(round_number, "rollouts"))
    shards = source.tables()
    reward = build_reward(run.config.reward)
    for number, name in enumerate(shards):
        if not writer.has(name):
            rollouts = read_parquet(run.store, source.file(name), ROLLOUTS).to_pylist()
            samples = [
                Sample(
                    id=row["rollout_id"],
                    response=row["text"],
                    gold=prompts[row["prompt_id"]]["gold"],
                    prompt=prompts[row["prompt_id"]]["prompt"],
                    finish_reason=row["finish_reason"],
                )
                for row in rollouts
            ]
            scores = reward(samples)
            rows = [
                {key: row[key] for key in ("rollout_id", "round", "prompt_id", "sample_index")}
                | {
                    "verdict": score.verdict.value,
                    "extracted": score.extracted,
                    "gold": sample.gold,
                    "components": sorted(score.components.items()),
                    "reward": score.reward,
                    "detail": score.detail,
                }
                for row, sample, score in zip(rollouts, samples, scores, strict=True)
            ]
            writer.write_table(name, pa.Table.from_pylist(rows, schema=REWARDS))
        progress(number + 1, len(shards))
        interrupt.safe_point()
    rewards = writer.artifact.read_table(REWARDS)
    return reward_metrics(rewards) | length_by_verdict(source.read_table(ROLLOUTS), rewards)


STAGE = Stage(
    name="score_rewards",
    version=STAGE_VERSION,
    folders=lambda n: {"rewards": round_folder(n, "rewards")},
    config=reward_key,
    inputs=lambda run, n: {
        "rollouts": input_digest(run, round_folder(n, "rollouts")),
        "prompts": input_digest(run, filter_prompts.FOLDER),
    },
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def score_rewards(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's rewards; cached by ``key``."""
    return execute(STAGE, run, round_number)
