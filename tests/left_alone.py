"""A run made without Prefect, MLflow or a process of its own: what is compared with runs that had a harder life."""

from pathlib import Path

from flows.stages import stages_of
from grpo_core.config import RunConfig
from tasks.retention import apply_retention
from tasks.run import Run, create_or_open
from tasks.stage import execute


def train_here(folder: Path, config: RunConfig) -> Run:
    """All stages of all rounds in order; a run that was trained by ``grpo-rounds`` has the same digests."""
    run = create_or_open(str(folder), config)[0]
    for number in range(config.rounds + 1):
        for _, stage in stages_of(run, number):
            execute(stage, run, number)
        apply_retention(run, number)
    return run
