"""The shards of a round's rollouts: which prompts each holds, and how one is generated."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow.compute as pc

from grpo_core.artifacts import ArtifactWriter, read_parquet
from grpo_core.canary import CANARY_FILE, check_canary
from grpo_core.errors import UserError
from grpo_core.generation.engine import Engine, Request, seeds_for
from grpo_core.generation.open import open_engine
from grpo_core.generation.shards import RolloutJob, make_shards, sampling_of
from grpo_core.schemas import PLAN, Progress, no_progress
from tasks.cluster import is_on_cluster
from tasks.cluster_rollouts import generate_on_cluster
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
        self.job = job_of(run, round_number, writer.fingerprint.digest)

    def open(self) -> Engine:
        """The engine on the policy that the round starts from; its canary is written when it is not there yet.

        Raises:
            UserError: the policy is gone, or the engine's weights are not the trainer's.
        """
        if self._engine is None:
            folder = self._held.enter_context(self._run.local_policy(start_of(self._run, self._round)))
            engine = self._held.enter_context(open_engine(folder, self.job.model, self.job.generation))
            probed = {"policy": self.job.policy_digest, "mean_difference": check_canary(engine, folder)}
            if not self._writer.has(CANARY_FILE):
                self._writer.write_json(CANARY_FILE, probed)
            self._engine = engine
        return self._engine

    def ensure_canary(self) -> None:
        """Leave the canary of an engine that has the policy's weights. Raises UserError as ``open`` does."""
        if self._writer.has(CANARY_FILE):
            return
        if is_on_cluster(self._run, self._writer):
            self._generate_on_cluster([], no_progress)
        else:
            self.open()

    def generate(self, shards: Sequence[Shard], progress: Progress) -> Iterator[Shard]:
        """Write shards, many at a time where the engine can; gives each, in order, once it is there.

        ``progress`` counts the completions of all of them.
        """
        by_name = {shard.name: shard for shard in shards}
        if not by_name:
            return
        if is_on_cluster(self._run, self._writer):
            self._generate_on_cluster(list(by_name), progress)
            yield from shards
            return
        for name in make_shards(self.job, self.open(), list(by_name), progress):
            self._require(name)
            yield by_name[name]

    def _generate_on_cluster(self, names: Sequence[str], progress: Progress) -> None:
        total, writer = sum(map(self.job.completions, names)), self._writer

        def look() -> None:
            writer.take_up_marked(names)
            progress(sum(self.job.completions(name) for name in names if writer.has(name)), total)

        start = start_of(self._run, self._round)
        difference = generate_on_cluster(self._run, start, self.job, names, look)
        for name in names:
            self._require(name)
        if not writer.has(CANARY_FILE):
            writer.write_json(CANARY_FILE, {"policy": self.job.policy_digest, "mean_difference": difference})

    def _require(self, name: str) -> None:
        if not (self._writer.has(name) or self._writer.take_up(name)):
            raise UserError(
                f"'{self._run.uri}/{self._writer.artifact.file(name)}' is not as it was written; run the same "
                "command again, finished work is kept."
            )


def job_of(run: Run, round_number: int, fingerprint: str) -> RolloutJob:
    """All of a round's shards as any process can write them; the run's URI and the policy are all it needs besides.

    Args:
        fingerprint: of the rollouts' artifact, in hex.

    Raises:
        InputMissing: the policy, the plan or the prompts are not there.
    """
    config = run.config
    rows = training_prompts(run, round_number, ["prompt_id", "prompt_ids"])
    plan = read_parquet(run.store, round_folder(round_number, "plan.parquet"), PLAN)
    planned = rows.filter(pc.is_in(rows["prompt_id"], plan["prompt_id"].combine_chunks()))
    prompt_ids: Mapping[str, list[int]] = {row["prompt_id"]: row["prompt_ids"] for row in planned.to_pylist()}

    def request(prompt_id: str) -> Request:
        seeds = seeds_for(config.seed, round_number, prompt_id, config.generation.group_size)
        return Request(prompt_id=prompt_id, prompt_ids=prompt_ids[prompt_id], seeds=seeds)

    return RolloutJob(
        store=run.store.uri,
        folder=round_folder(round_number, "rollouts"),
        fingerprint=fingerprint,
        round=round_number,
        policy_digest=input_digest(run, round_folder(start_of(run, round_number), "policy")),
        model=config.model,
        generation=config.generation,
        sampling=sampling_of(config.generation),
        shards={shard.name: [request(name) for name in shard.prompt_ids] for shard in shards_of(run, round_number)},
    )


@contextmanager
def open_generator(run: Run, round_number: int, writer: ArtifactWriter) -> Iterator[Generator]:
    """A generator whose engine, once started, is closed afterwards."""
    with ExitStack() as held:
        yield Generator(run, round_number, writer, held)
