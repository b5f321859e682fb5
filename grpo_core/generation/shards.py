"""Rollout shards that any process can write: the job says all that one needs, besides the policy's folder.

A shard is a file of whole groups, always generated in one batch, so that it has the same bytes whenever and wherever
it is made. Whoever makes the round's artifact has an ``ArtifactWriter`` and takes finished shards up by their marks;
others need the job, an engine on the policy, and a shard's name.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from grpo_core.artifacts import Artifact
from grpo_core.generation.engine import Completion, Engine, GenerationConfig, Request, SamplingParams
from grpo_core.models import ModelConfig
from grpo_core.schemas import ROLLOUTS, Progress, no_progress, rollout_id, shifted
from grpo_core.storage import Store


class RolloutJob(BaseModel):
    """What decides a round's shards; JSON, so that it can be sent to another process or machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    store: str  # the run's URI
    folder: str  # of the artifact, within the run
    fingerprint: str  # of the artifact, in hex
    round: int
    policy_digest: str
    model: ModelConfig
    generation: GenerationConfig
    sampling: SamplingParams
    shards: Mapping[str, Sequence[Request]]  # by file name

    def completions(self, name: str) -> int:
        """How many completions a shard holds."""
        return sum(len(request.seeds) for request in self.shards[name])


@runtime_checkable
class ShardMaker(Protocol):
    """An engine that makes shards in processes of its own."""

    def make(self, job: RolloutJob, names: Sequence[str], progress: Progress = no_progress) -> Iterator[str]:
        """Write shards and their marks; gives each name, in order, when it is there. See ``make_shards``."""
        ...


def sampling_of(generation: GenerationConfig) -> SamplingParams:
    """How training samples."""
    return SamplingParams(
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        max_new_tokens=generation.max_new_tokens,
    )


def write_shard(job: RolloutJob, engine: Engine, name: str, progress: Progress = no_progress) -> None:
    """Generate one shard and write it with its mark; ``progress`` counts its completions.

    Args:
        engine: on the job's policy, its canary checked.

    Raises:
        UserError: a prompt doesn't fit the model, or the run can't be written.
    """
    requests = job.shards[name]
    groups = engine.generate(requests, job.sampling, progress)
    table = _rows(job, requests, groups, engine)
    Artifact(Store(job.store), job.folder).write_table(name, table, job.fingerprint)


def make_shards(
    job: RolloutJob, engine: Engine | ShardMaker, names: Sequence[str], progress: Progress = no_progress
) -> Iterator[str]:
    """Write shards, many at a time where the engine can; gives each name, in order, when the shard is there.

    ``progress`` counts the completions of all of them.
    """
    if isinstance(engine, ShardMaker):
        yield from engine.make(job, names, progress)
        return
    total, done = sum(job.completions(name) for name in names), 0
    for name in names:
        write_shard(job, engine, name, shifted(progress, done, total))
        done += job.completions(name)
        yield name


def _rows(
    job: RolloutJob, requests: Sequence[Request], groups: Sequence[Sequence[Completion]], engine: Engine
) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "rollout_id": rollout_id(job.round, request.prompt_id, index),
            "round": job.round,
            "prompt_id": request.prompt_id,
            "sample_index": index,
            "prompt_ids": request.prompt_ids,
            "completion_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "seed": request.seeds[index],
            "temperature": job.sampling.temperature,
            "top_p": job.sampling.top_p,
            "top_k": job.sampling.top_k,
            "max_new_tokens": job.sampling.max_new_tokens,
            "policy_digest": job.policy_digest,
            "engine": engine.name,
            "engine_version": engine.version,
        }
        for request, group in zip(requests, groups, strict=True)
        for index, completion in enumerate(group)
    ]
    return pa.Table.from_pylist(rows, schema=ROLLOUTS)
