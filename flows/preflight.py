"""Checks that cost little and find bad input before a run folder exists."""

from grpo_core.artifacts import Artifact
from grpo_core.config import RunConfig
from grpo_core.models import check_source, resolve_device
from grpo_core.prompts.sources import load_rows
from grpo_core.rewards.score import build_reward
from grpo_core.storage import Store
from tasks import filter_prompts, initial_policy
from tasks.tracking_place import place_of


def check_config(config: RunConfig, run_dir: str) -> None:
    """Look at what the config points to: device, model, first row of the data, reward, MLflow's address.

    A run that has its starting policy and prompts already needs neither the model's nor the data's source any more.

    Raises:
        UserError: one of them is not there or not usable.
    """
    store = Store(run_dir)
    resolve_device(config.model)
    place_of(run_dir, config.tracking)
    build_reward(config.reward)
    if Artifact(store, initial_policy.FOLDER).manifest() is None:
        check_source(config.model)
    if Artifact(store, filter_prompts.FOLDER).manifest() is None:
        next(iter(load_rows(config.data, config.seed)), None)
