"""The shards of a round's rollouts: which prompts each holds, and how one is generated."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grpo_core.artifacts import ArtifactWriter, read_parquet
from grpo_core.canary import CANARY_FILE, check_canary
from grpo_core.generation.engine import Completion, Engine, Request, SamplingParams, seeds_for
from grpo_core.generation.open import open_engine
from grpo_core.schemas import PLAN, ROLLOUTS, Progress, rollout_id
from tasks.pools import training_prompts
from tasks.run import Run, round_folder
from tasks.stage import input_digest
from tasks.start_policy import start_of


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of whole groups, always generated in one batch, so that it has the same bytes whenever it is made."""

    name: str
    prompt_ids: list[str]
    reserve: bool  # needed only when too many groups before it have no variance


def shards_of(run: Run, round_number: int) -> list[Shard]:
    """The shards of a round in order, by its plan; those of the reserve come last and hold nothing else."""
    plan = read_parquet(run.store, round_folder(round_number, "plan.parquet"), PLAN)
    size = run.config.generation.shard_groups
    shards: list[Shard] = []
    for reserve in (False, True):
        ids = plan.filter(pc.equal(plan["reserve"], reserve))["prompt_id"].to_pylist()
        for start in range(0, len(ids), size):
            name = f"shard-{len(shards):05d}.parquet"
            shards.append(Shard(name, ids[start : start + size], reserve))
    return shards


class Generator:
    """Writes shards of a round's rollouts; the engine is started for the first one that is not there yet."""

    def __init__(self, run: Run, round_number: int, writer: ArtifactWriter, held: ExitStack) -> None:
        self._run = run
        self._round = round_number
        self._writer = writer
        self._held = held
        self._engine: Engine | None = None
        rows = training_prompts(run, round_number, ["prompt_id", "prompt_ids"])
        plan = read_parquet(run.store, round_folder(round_number, "plan.parquet"), PLAN)
        planned = rows.filter(pc.is_in(rows["prompt_id"], plan["prompt_id"].combine_chunks()))
        self._prompt_ids: Mapping[str, list[int]] = {row["prompt_id"]: row["prompt_ids"] for row in planned.to_pylist()}
        self._policy_digest = input_digest(run, round_folder(start_of(run, round_number), "policy"))

    def open(self) -> Engine:
        """The engine on the policy that the round starts from; its canary is written when it is not there yet.

        Raises:
            UserError: the policy is gone, or the engine's weights are not the trainer's.
        """
        if self._engine is None:
            folder = self._held.enter_context(self._run.local_policy(start_of(self._run, self._round)))
            config = self._run.config
            engine = self._held.enter_context(open_engine(folder, config.model, config.generation))
            probed = {"policy": self._policy_digest, "mean_difference": check_canary(engine, folder)}
            if not self._writer.has(CANARY_FILE):
                self._writer.write_json(CANARY_FILE, probed)
            self._engine = engine
        return self._engine

    def generate(self, shard: Shard, progress: Progress) -> None:
        """Write one shard; ``progress`` hears of its completions."""
        engine, config = self.open(), self._run.config
        generation = config.generation
        requests = [
            Request(
                prompt_id=prompt_id,
                prompt_ids=self._prompt_ids[prompt_id],
                seeds=seeds_for(config.seed, self._round, prompt_id, generation.group_size),
            )
            for prompt_id in shard.prompt_ids
        ]
        sampling = SamplingParams(
            temperature=generation.temperature,
            top_p=generation.top_p,
            top_k=generation.top_k,
            max_new_tokens=generation.max_new_tokens,
        )
        groups = engine.generate(requests, sampling, progress)
        self._writer.write_table(shard.name, self._rows(requests, groups, sampling, engine))

    def _rows(
        self, requests: list[Request], groups: list[list[Completion]], sampling: SamplingParams, engine: Engine
    ) -> pa.Table:
        rows: list[dict[str, Any]] = [
            {
                "rollout_id": rollout_id(self._round, request.prompt_id, index),
                "round": self._round,
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
                "policy_digest": self._policy_digest,
                "engine": engine.name,
                "engine_version": engine.version,
            }
            for request, group in zip(requests, groups, strict=True)
            for index, completion in enumerate(group)
        ]
        return pa.Table.from_pylist(rows, schema=ROLLOUTS)


@contextmanager
def open_generator(run: Run, round_number: int, writer: ArtifactWriter) -> Iterator[Generator]:
    """A generator whose engine, once started, is closed afterwards."""
    with ExitStack() as held:
        yield Generator(run, round_number, writer, held)
