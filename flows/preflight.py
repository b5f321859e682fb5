"""Checks that cost little and find bad input before a run folder exists."""

from grpo_core.config import RunConfig
from grpo_core.models import check_source, resolve_device
from grpo_core.prompts.sources import load_rows
from grpo_core.rewards.score import build_reward


def check_config(config: RunConfig) -> None:
    """Look at what the config points to: the device, the model, the first row of the data, the reward.

    Raises:
        UserError: one of them is not there or not usable.
    """
    resolve_device(config.model)
    check_source(config.model)
    build_reward(config.reward)
    next(iter(load_rows(config.data, config.seed)), None)
