"""Stage: bring the starting policy into the run folder, as round 0. It is the reference policy, too."""

from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core.models import load_source_model, save_policy
from grpo_core.schemas import Progress
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute

STAGE_VERSION = 2
FOLDER = round_folder(0, "policy")


def _compute(run: Run, _: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    model, tokenizer = load_source_model(run.config.model, run.config.seed)
    writers["policy"].write_folder(lambda folder: save_policy(model, tokenizer, folder))
    return {"parameters": float(sum(p.numel() for p in model.parameters()))}


STAGE = Stage(
    name="initial_policy",
    version=STAGE_VERSION,
    folders=lambda _: {"policy": FOLDER},
    # The seed matters only to a model that is built on the spot.
    config=lambda run: {"model.name": run.config.model.name, "seed": run.config.seed},
    inputs=lambda run, _: {},
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def initial_policy(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """Round 0's policy; cached by ``key``."""
    return execute(STAGE, run, round_number)
