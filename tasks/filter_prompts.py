"""Stage: read the data, keep what can be trained on, hold some out, and say why the rest was rejected."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prefect import task

from grpo_core.canary import CANARY_FILE
from grpo_core.errors import UserError
from grpo_core.models import load_tokenizer
from grpo_core.prompts.filters import filter_prompts as filter_rows
from grpo_core.prompts.gold_check import GoldCheck
from grpo_core.prompts.plan import plan_round
from grpo_core.prompts.sources import load_rows
from grpo_core.schemas import Progress
from tasks import initial_policy
from tasks.run import Run
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_manifest

STAGE_VERSION = 3
FOLDER = "prompts"


def _inputs(run: Run, _: int) -> Mapping[str, str]:
    # The weights don't matter here: only what turns text into ids.
    return {
        "tokenizer": input_manifest(run, initial_policy.FOLDER).digest_of(
            lambda name: not name.endswith(".safetensors") and name != CANARY_FILE
        )
    }


def _config(run: Run) -> Mapping[str, Any]:
    data = run.config.data.model_dump(mode="json", exclude={"prompts_per_round"})
    key = {"data": data, "seed": run.config.seed}
    if run.config.data.filters.gold_check == "auto":
        rewards = [source.reward for source in (*run.config.data.mix, *run.config.data.eval_sources)]
        key["gold_check"] = GoldCheck(run.config.reward).fingerprint(rewards)
    return key


def _compute(run: Run, _: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    with run.store.local_folder(initial_policy.FOLDER) as folder:
        tokenizer, model = load_tokenizer(folder), json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config, seed = run.config.data, run.config.seed
    sources, eval_sources = (
        [(source, load_rows(source, seed)) for source in part] for part in (config.mix, config.eval_sources)
    )
    check = GoldCheck(run.config.reward)
    kept = filter_rows(sources, eval_sources, config, tokenizer, seed, progress, check)
    # Refused here, before anything is written, rather than by the first round: a round that takes more than there is.
    plan_round(
        kept.train["prompt_id"].to_pylist(), round_number=1, prompts_per_round=config.prompts_per_round, seed=seed
    )
    _refuse_too_long(run, [*kept.train["prompt_ids"], *kept.eval["prompt_ids"]], model)
    for name, table in (("train", kept.train), ("eval", kept.eval), ("rejected", kept.rejected)):
        writers[FOLDER].write_table(f"{name}.parquet", table)
    counts = {f"rejected_{reason}": float(count) for reason, count in kept.counts.items()}
    golds = {f"golds_{kind}": float(count) for kind, count in kept.golds.items()}
    return {"train": float(kept.train.num_rows), "eval": float(kept.eval.num_rows)} | counts | golds


def _refuse_too_long(run: Run, prompts: Sequence[Any], model: Mapping[str, Any]) -> None:
    """Raise UserError now when a prompt with its answer can't fit the model, rather than in the round that takes it."""
    limit, room = model.get("max_position_embeddings"), run.config.generation.max_new_tokens
    longest = max(len(ids) for ids in prompts)
    if limit is not None and longest + room > limit:
        raise UserError(
            f"The longest prompt has {longest} tokens, and with generation.max_new_tokens {room} that exceeds the "
            f"model's context of {limit}; lower generation.max_new_tokens, or data.max_prompt_tokens to reject them."
        )


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
