"""Stage: verdicts and rewards for the round's rollouts, a shard of rewards for a shard of rollouts."""

from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core.rewards import smoothing
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import needs_reference, reward_code, reward_settings
from grpo_core.schemas import Progress
from tasks import filter_prompts, initial_policy
from tasks.round_labels import labels_input, scoring_labels
from tasks.run import Run, round_folder
from tasks.score_round import score_round
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 2


def reward_key(config: RewardConfig) -> Mapping[str, Any]:
    """What of the reward decides scores: its config, and its code by digest."""
    return {"reward": reward_settings(config), "reward_code": reward_code(config)}


def reward_inputs(run: Run, config: RewardConfig) -> Mapping[str, str]:
    """The artifacts of the run that the reward itself asks. Raises InputMissing."""
    return {"reference": input_digest(run, initial_policy.FOLDER)} if needs_reference(config) else {}


def scoring_labels_input(run: Run, round_number: int) -> Mapping[str, str]:
    """What people said that may change scores of this round. Raises InputMissing."""
    config = run.config.labels
    return labels_input(scoring_labels(run, round_number), config.pays_ok, config.pays_wrong)


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    inputs = {
        "rollouts": input_digest(run, round_folder(round_number, "rollouts")),
        "prompts": input_digest(run, filter_prompts.FOLDER),
        **reward_inputs(run, run.config.reward),
        **scoring_labels_input(run, round_number),
    }
    if run.config.reward.smoothing and round_number > 1:
        inputs["rewards_before"] = input_digest(run, round_folder(round_number - 1, "rewards"))
    return inputs


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    config = run.config.reward
    past: smoothing.State = {}
    if config.smoothing and round_number > 1:
        before = run.artifact(round_folder(round_number - 1, "rewards"))
        past = smoothing.from_bytes(run.store.read_bytes(before.file(smoothing.FILE)))
    return score_round(run, round_number, config, writers["rewards"], past, progress)


STAGE = Stage(
    name="score_rewards",
    version=STAGE_VERSION,
    folders=lambda n: {"rewards": round_folder(n, "rewards")},
    config=lambda run: reward_key(run.config.reward),
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def score_rewards(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's rewards; cached by ``key``."""
    return execute(STAGE, run, round_number)
