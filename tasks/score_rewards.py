"""Stage: verdicts and rewards for the round's rollouts, a shard of rewards for a shard of rollouts."""

from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core.prompts.config import DataConfig
from grpo_core.prompts.rewards import source_rewards
from grpo_core.rewards import smoothing
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import needs_reference, reward_code, reward_settings
from grpo_core.schemas import Progress
from tasks import initial_policy
from tasks.pools import pools_digest
from tasks.round_labels import labels_input, scoring_labels
from tasks.run import Run, round_folder
from tasks.score_round import score_round
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 2


def reward_key(data: DataConfig, config: RewardConfig) -> Mapping[str, Any]:
    """What of the rewards decides scores, the run's own and its sources': their config, and their code by digest."""
    others = source_rewards(data, config)
    key = {"reward": reward_settings(config), "reward_code": reward_code(config)}
    if not others:  # a run without them has no such part, so that what was scored before there were any still counts
        return key
    of_sources = {label: [reward_settings(reward), reward_code(reward)] for label, reward in sorted(others.items())}
    return {**key, "source_rewards": of_sources}


def reward_inputs(run: Run, config: RewardConfig) -> Mapping[str, str]:
    """The artifacts of the run that the rewards themselves ask. Raises InputMissing."""
    rewards = (config, *source_rewards(run.config.data, config).values())
    return {"reference": input_digest(run, initial_policy.FOLDER)} if any(map(needs_reference, rewards)) else {}


def scoring_labels_input(run: Run, round_number: int) -> Mapping[str, str]:
    """What people said that may change scores of this round. Raises InputMissing."""
    config = run.config.labels
    return labels_input(scoring_labels(run, round_number), config.pays_ok, config.pays_wrong)


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    inputs = {
        "rollouts": input_digest(run, round_folder(round_number, "rollouts")),
        "prompts": pools_digest(run, round_number),
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
    config=lambda run: reward_key(run.config.data, run.config.reward),
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def score_rewards(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's rewards; cached by ``key``."""
    return execute(STAGE, run, round_number)
