"""Checks that cost little and find bad input before a run folder exists."""

from collections.abc import Callable
from functools import partial

from flows.plan import refuse_what_cannot_fit
from grpo_core.artifacts import Artifact
from grpo_core.config import RunConfig
from grpo_core.generation.check import check_engine
from grpo_core.models import check_source, resolve_device
from grpo_core.prompts.config import SourceConfig
from grpo_core.prompts.rewards import check_source_reward
from grpo_core.prompts.sources import load_rows
from grpo_core.rewards.score import build_reward
from grpo_core.storage import Store
from tasks import initial_policy
from tasks.pools import pool_folder
from tasks.run import with_joining_sources
from tasks.tracking_place import place_of


def checks(config: RunConfig, run_dir: str) -> list[Callable[[], object]]:
    """One call for each thing that a config points to: MLflow's address, rewards, device, engine, model, data sources.

    A run that has its starting policy and the prompts of a source already needs neither the model nor that source.
    Each call raises UserError when its thing is not usable, NotHere when only this machine lacks it.
    """
    store = Store(run_dir)
    found: list[Callable[[], object]] = [
        lambda: place_of(run_dir, config.tracking),
        lambda: build_reward(config.reward),
        lambda: resolve_device(config.model),
        lambda: check_engine(config),
    ]
    for where, source in config.data.places.items():
        found.append(partial(check_source_reward, where, source, config.reward))
    if Artifact(store, initial_policy.FOLDER).manifest() is None:
        found.append(lambda: check_source(config.model))
        found.append(lambda: refuse_what_cannot_fit(config))
    elif store.is_local:
        found.append(lambda: refuse_what_cannot_fit(config, str(store.path(initial_policy.FOLDER))))
    for where, source in with_joining_sources(run_dir, config).data.places.items():
        first = 1 if where.startswith("data.eval_sources") else source.from_round or 1
        if Artifact(store, pool_folder(first)).manifest() is None:
            found.append(partial(_first_row, source, config.seed, where))
    return found


def _first_row(source: SourceConfig, seed: int, where: str) -> None:
    next(load_rows(source, seed, where), None)


def check_config(config: RunConfig, run_dir: str) -> None:
    """Make every check; raises the first UserError."""
    for check in checks(config, run_dir):
        check()
