"""Stage: the policy that the round starts from answers each planned prompt G times, shard by shard."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from prefect import task

from grpo_core import interrupt
from grpo_core.artifacts import read_parquet
from grpo_core.canary import CANARY_FILE, check_canary
from grpo_core.diagnostics import rollout_metrics
from grpo_core.generation.engine import Completion, Engine, Request, SamplingParams, seeds_for
from grpo_core.generation.open import open_engine
from grpo_core.schemas import PLAN, PROMPTS, ROLLOUTS, Progress, rollout_id, shifted
from tasks import filter_prompts
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest
from tasks.start_policy import start_of

STAGE_VERSION = 2


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    return {
        "policy": input_digest(run, round_folder(start_of(run, round_number), "policy")),
        "plan": input_digest(run, round_folder(round_number, "plan.parquet")),
        "prompts": input_digest(run, filter_prompts.FOLDER),
    }


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    config, writer = run.config.generation, writers["rollouts"]
    prompts = {row["prompt_id"]: row for row in _planned_prompts(run, round_number).to_pylist()}
    plan = read_parquet(run.store, round_folder(round_number, "plan.parquet"), PLAN)["prompt_id"].to_pylist()
    shards = [plan[start : start + config.shard_groups] for start in range(0, len(plan), config.shard_groups)]
    total = len(plan) * config.group_size
    policy_digest = input_digest(run, round_folder(start_of(run, round_number), "policy"))
    pending = {n: ids for n, ids in enumerate(shards) if not writer.has(shard_name(n))}
    done = total - config.group_size * sum(len(ids) for ids in pending.values())
    if pending or not writer.has(CANARY_FILE):
        with (
            run.local_policy(start_of(run, round_number)) as folder,
            open_engine(folder, run.config.model, config) as engine,
        ):
            probed = {"policy": policy_digest, "mean_difference": check_canary(engine, folder)}
            if not writer.has(CANARY_FILE):
                writer.write_json(CANARY_FILE, probed)
            for number, ids in pending.items():
                requests = [
                    Request(
                        prompt_id=prompt_id,
                        prompt_ids=prompts[prompt_id]["prompt_ids"],
                        seeds=seeds_for(run.config.seed, round_number, prompt_id, config.group_size),
                    )
                    for prompt_id in ids
                ]
                sampling = SamplingParams(
                    temperature=config.temperature,
                    top_p=config.top_p,
                    top_k=config.top_k,
                    max_new_tokens=config.max_new_tokens,
                )
                groups = engine.generate(requests, sampling, shifted(progress, done, total))
                writer.write_table(
                    shard_name(number), _rows(requests, groups, sampling, round_number, policy_digest, engine)
                )
                done += len(ids) * config.group_size
                progress(done, total)
                interrupt.safe_point()
    probed = json.loads(run.store.read_bytes(writer.artifact.file(CANARY_FILE)))
    metrics = rollout_metrics(writer.artifact.read_table(ROLLOUTS))
    return metrics | {"canary_difference": probed["mean_difference"]}


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.parquet"


def _planned_prompts(run: Run, round_number: int) -> pa.Table:
    train = read_parquet(run.store, f"{filter_prompts.FOLDER}/train.parquet", PROMPTS)
    plan = read_parquet(run.store, round_folder(round_number, "plan.parquet"), PLAN)
    return train.filter(pc.is_in(train["prompt_id"], plan["prompt_id"].combine_chunks()))


def _rows(
    requests: list[Request],
    groups: list[list[Completion]],
    sampling: SamplingParams,
    round_number: int,
    policy_digest: str,
    engine: Engine,
) -> pa.Table:
    rows = [
        {
            "rollout_id": rollout_id(round_number, request.prompt_id, index),
            "round": round_number,
            "prompt_id": request.prompt_id,
            "sample_index": index,
            "prompt_ids": request.prompt_ids,
            "completion_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "seed": request.seeds[index],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_new_tokens": sampling.max_new_tokens,
            "policy_digest": policy_digest,
            "engine": engine.name,
            "engine_version": engine.version,
        }
        for request, group in zip(requests, groups, strict=True)
        for index, completion in enumerate(group)
    ]
    return pa.Table.from_pylist(rows, schema=ROLLOUTS)


STAGE = Stage(
    name="generate_rollouts",
    version=STAGE_VERSION,
    folders=lambda n: {"rollouts": round_folder(n, "rollouts")},
    config=lambda run: {
        "generation": run.config.generation.model_dump(mode="json"),
        "model.dtype": run.config.model.dtype,
        "seed": run.config.seed,
    },
    inputs=_inputs,
    compute=_compute,
    models=lambda run, n: [round_folder(start_of(run, n), "policy")],
)


@task(name=STAGE.name, **TASK_OPTIONS)
def generate_rollouts(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's rollouts; cached by ``key``."""
    return execute(STAGE, run, round_number)
