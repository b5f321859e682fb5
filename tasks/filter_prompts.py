"""Stage: read the data, keep what can be trained on, hold some out, and say why the rest was rejected."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prefect import task

from grpo_core.artifacts import read_parquet
from grpo_core.canary import CANARY_FILE
from grpo_core.errors import UserError
from grpo_core.fingerprint import digest_json
from grpo_core.models import load_tokenizer
from grpo_core.prompts.config import DataConfig, SourceConfig, SourceKeys
from grpo_core.prompts.facts import source_facts
from grpo_core.prompts.filters import FilteredPrompts, Known
from grpo_core.prompts.filters import filter_prompts as filter_rows
from grpo_core.prompts.gold_check import GoldCheck
from grpo_core.prompts.joining import content_of
from grpo_core.prompts.plan import Candidate, plan_round
from grpo_core.prompts.rewards import source_rewards
from grpo_core.prompts.sources import load_rows
from grpo_core.schemas import PROMPTS, Progress
from tasks import initial_policy
from tasks.pools import FIRST_POOL, pool_folder, pools, sources_from, training_prompts
from tasks.run import Run
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest, input_manifest

STAGE_VERSION = 3
FOLDER = FIRST_POOL
SOURCES = "sources.json"
# What decides when prompts are taken, not which there are.
_PLANNING = {"prompts_per_round", "curriculum", "difficulty", "dynamic_sampling", "sources", *SourceKeys.model_fields}


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    data = run.config.data
    sources = sources_from(data, round_number)
    inputs = {
        # The weights don't matter here: only what turns text into ids.
        "tokenizer": input_manifest(run, initial_policy.FOLDER).digest_of(
            lambda name: not name.endswith(".safetensors") and name != CANARY_FILE
        ),
        "sources": digest_json([content_of(source) for source in sources]),
        **{folder: input_digest(run, folder) for folder in pools(data, round_number - 1) if round_number},
    }
    if data.filters.gold_check == "auto":
        labels = [source.label for source in (*sources, *_eval_sources(data, round_number))]
        inputs["gold_check"] = digest_json(_gold_check(run).fingerprint(labels))
    return inputs


def _gold_check(run: Run) -> GoldCheck:
    return GoldCheck(run.config.reward, source_rewards(run.config.data, run.config.reward))


def _eval_sources(data: DataConfig, round_number: int) -> list[SourceConfig]:
    """What is held out comes with the first pool."""
    return [] if round_number else data.eval_sources


def _config(run: Run) -> Mapping[str, Any]:
    data = run.config.data.model_dump(mode="json", exclude=_PLANNING)
    return {"data": data, "seed": run.config.seed}


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    with run.store.local_folder(initial_policy.FOLDER) as folder:
        tokenizer, model = load_tokenizer(folder), json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config, seed = run.config.data, run.config.seed
    places = {source.label: place for place, source in config.places.items()}
    sources, eval_sources = (
        [(source, load_rows(source, seed, places[source.label])) for source in part]
        for part in (sources_from(config, round_number), _eval_sources(config, round_number))
    )
    known = _known(run, round_number)
    kept = filter_rows(sources, eval_sources, config, tokenizer, seed, progress, _gold_check(run), known)
    if known is None:
        pairs = zip(kept.train["prompt_id"].to_pylist(), kept.train["source"].to_pylist(), strict=True)
        # Refused here, before anything is written, rather than by the first round: one that takes more than there is.
        plan_round([Candidate(prompt_id, source) for prompt_id, source in pairs], {}, config, round_number=1, seed=seed)
    _refuse_too_long(run, [*kept.train["prompt_ids"], *kept.eval["prompt_ids"]], model)
    writer = writers[FOLDER]
    for name, table in (("train", kept.train), ("eval", kept.eval), ("rejected", kept.rejected)):
        writer.write_table(f"{name}.parquet", table)
    facts = [source_facts(source, seed) for source, _ in (*sources, *eval_sources)]
    writer.write_json(SOURCES, [{**fact, **_rows_of(kept, fact["name"])} for fact in facts])
    counts = {f"rejected_{reason}": float(count) for reason, count in kept.counts.items()}
    golds = {f"golds_{kind}": float(count) for kind, count in kept.golds.items()}
    return {"train": float(kept.train.num_rows), "eval": float(kept.eval.num_rows)} | counts | golds


def _known(run: Run, round_number: int) -> Known | None:
    """The prompts that the run has when a source joins it; None for the first pool."""
    if not round_number:
        return None
    held_out = read_parquet(run.store, f"{FOLDER}/eval.parquet", PROMPTS)
    return Known(training_prompts(run, round_number - 1), held_out)


def _rows_of(kept: FilteredPrompts, label: str) -> Mapping[str, int]:
    """How many rows of a source went where."""
    tables = {"train": kept.train, "eval": kept.eval, "rejected": kept.rejected}
    return {name: table["source"].to_pylist().count(label) for name, table in tables.items()}


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
    folders=lambda n: {FOLDER: pool_folder(n)},
    config=_config,
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def filter_prompts(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The run's prompts; cached by ``key``."""
    return execute(STAGE, run, round_number)
