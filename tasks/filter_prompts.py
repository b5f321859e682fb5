"""Stage: read the data, keep what can be trained on, hold some out, and say why the rest was rejected."""

from collections.abc import Mapping
from typing import Any

from prefect import task

from grpo_core.models import load_tokenizer
from grpo_core.prompts.filters import filter_prompts as filter_rows
from grpo_core.prompts.plan import plan_round
from grpo_core.prompts.sources import load_rows
from grpo_core.schemas import Progress
from tasks import initial_policy
from tasks.run import Run
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_manifest

STAGE_VERSION = 1
FOLDER = "prompts"


def _inputs(run: Run, _: int) -> Mapping[str, str]:
    # The weights don't matter here: only what turns text into ids.
    return {
        "tokenizer": input_manifest(run, initial_policy.FOLDER).digest_of(
            lambda name: not name.endswith(".safetensors")
        )
    }


def _config(run: Run) -> Mapping[str, Any]:
    data = run.config.data.model_dump(mode="json", exclude={"prompts_per_round"})
    return {"data": data, "seed": run.config.seed}


def _compute(run: Run, _: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    with run.store.local_folder(initial_policy.FOLDER) as folder:
        tokenizer = load_tokenizer(folder)
    config, seed = run.config.data, run.config.seed
    kept = filter_rows(load_rows(config, seed), config, tokenizer, seed, progress)
    # Refused here, before anything is written, rather than by the first round: a round that takes more than there is.
    plan_round(
        kept.train["prompt_id"].to_pylist(), round_number=1, prompts_per_round=config.prompts_per_round, seed=seed
    )
    for name, table in (("train", kept.train), ("eval", kept.eval), ("rejected", kept.rejected)):
        writers[FOLDER].write_table(f"{name}.parquet", table)
    counts = {f"rejected_{reason}": float(count) for reason, count in kept.counts.items()}
    return {"train": float(kept.train.num_rows), "eval": float(kept.eval.num_rows)} | counts


STAGE = Stage(
    name="filter_prompts",
    version=STAGE_VERSION,
    folders=lambda _: {FOLDER: FOLDER},
    config=_config,
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def filter_prompts(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The run's prompts; cached by ``key``."""
    return execute(STAGE, run, round_number)
