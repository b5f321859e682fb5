"""Stage: verdicts and rewards for the round's rollouts, a shard of rewards for a shard of rollouts."""

from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core.fingerprint import digest_json
from grpo_core.prompts.config import DataConfig
from grpo_core.prompts.rewards import source_rewards
from grpo_core.rewards import smoothing
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import needs_reference, reward_code, reward_settings
from grpo_core.schemas import Progress
from tasks import initial_policy
from tasks.early_scores import taken
from tasks.pools import pools_digest, training_sources_at
from tasks.round_labels import labels_input, scoring_labels
from tasks.run import Run, round_folder
from tasks.score_round import score_round
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest, input_manifest

STAGE_VERSION = 2


def reward_key(config: RewardConfig) -> Mapping[str, Any]:
    """What of the run's own reward decides scores: its config, and its code by digest."""
    return {"reward": reward_settings(config), "reward_code": reward_code(config)}


def reward_inputs(run: Run, data: DataConfig, config: RewardConfig) -> Mapping[str, str]:
    """What else decides scores: rewards of the sources in ``data``, and what of the run they ask.

    Args:
        data: the section with no more sources in it than the rows to score come from.

    Raises:
        InputMissing: the run has no starting policy yet, and a reward asks it.
    """
    others = source_rewards(data, config)
    inputs = {}
    if others:
        told = {label: [reward_settings(reward), reward_code(reward)] for label, reward in sorted(others.items())}
        inputs["source_rewards"] = digest_json(told)
    if any(map(needs_reference, (config, *others.values()))):
        inputs["reference"] = input_digest(run, initial_policy.FOLDER)
    return inputs


def scoring_labels_input(run: Run, round_number: int) -> Mapping[str, str]:
    """What people said that may change scores of this round. Raises InputMissing."""
    config = run.config.labels
    return labels_input(scoring_labels(run, round_number), config.pays_ok, config.pays_wrong)


def scoring_inputs(run: Run, round_number: int) -> Mapping[str, str]:
    """The artifacts, besides the rollouts, that decide a round's rewards. Raises InputMissing."""
    inputs = {
        "prompts": pools_digest(run, round_number),
        **reward_inputs(run, training_sources_at(run.config.data, round_number), run.config.reward),
        **scoring_labels_input(run, round_number),
    }
    if run.config.reward.smoothing and round_number > 1:
        inputs["rewards_before"] = input_digest(run, round_folder(round_number - 1, "rewards"))
    return inputs


def scoring_digest(run: Run, round_number: int) -> str:
    """One name for all that decides a round's rewards besides its rollouts. Raises InputMissing."""
    return digest_json([round_number, reward_key(run.config.reward), scoring_inputs(run, round_number), run.identity])


def past_smoothing(run: Run, round_number: int) -> smoothing.State:
    """The state of smoothing after the round before; empty where there is none."""
    if not run.config.reward.smoothing or round_number <= 1:
        return {}
    before = run.artifact(round_folder(round_number - 1, "rewards"))
    return smoothing.from_bytes(run.store.read_bytes(before.file(smoothing.FILE)))


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    past = past_smoothing(run, round_number)
    rollouts = input_manifest(run, round_folder(round_number, "rollouts"))
    early = taken(scoring_digest(run, round_number), rollouts.files)
    return score_round(run, round_number, run.config.reward, writers["rewards"], past, progress, early)


STAGE = Stage(
    name="score_rewards",
    version=STAGE_VERSION,
    folders=lambda n: {"rewards": round_folder(n, "rewards")},
    config=lambda run: reward_key(run.config.reward),
    inputs=lambda run, n: {
        "rollouts": input_digest(run, round_folder(n, "rollouts")),
        **scoring_inputs(run, n),
    },
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def score_rewards(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's rewards; cached by ``key``."""
    return execute(STAGE, run, round_number)
