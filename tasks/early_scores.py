"""Rewards of a round's shards while later shards are still being generated.

Nothing is written: tables wait in this process until ``score_rewards`` asks for them, and are given only where the very
bytes of the shard and all that decides its scores are the same. So what lies on disk never depends on whether a shard
was early. A process that is killed loses them, and they are made again.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa

from grpo_core.artifacts import ArtifactWriter
from grpo_core.prompts.rewards import source_rewards
from grpo_core.rewards import smoothing
from grpo_core.rewards.score import checks_aside
from grpo_core.rewards.workers import LAST, close_pools, step_back
from grpo_core.storage import FileRecord
from tasks.cluster import is_on_cluster
from tasks.reward_tables import failed_checks, open_tables
from tasks.run import Run

_log = logging.getLogger(__name__)
_waiting: dict[str, dict[str, tuple[FileRecord, pa.Table]]] = {}  # by all that decides them, then by shard


@contextmanager
def scoring_early(
    run: Run, round_number: int, writer: ArtifactWriter, key: str, past: smoothing.State
) -> Iterator[Callable[[str], None]]:
    """Takes names of finished shards, which a thread scores while the caller goes on.

    At the end it waits for what is under way; after an error or a stop it doesn't. Rewards that run a model or the
    user's own code, or cost money, are left to their stage.

    Args:
        writer: of the round's rollouts.
        key: names all that decides the rewards besides the rollouts.
        past: the state of smoothing after the round before.
    """
    config = run.config
    rewards = [config.reward, *source_rewards(config.data, config.reward).values()]
    if is_on_cluster(run, writer) or not all(map(checks_aside, rewards)):
        yield lambda _: None
        return
    _waiting.clear()  # of a round that was given up
    ready = _waiting[key] = {}
    with open_tables(run, round_number, config.reward, past) as tables:

        def make(name: str) -> None:
            _, table = tables.make(name)
            if not failed_checks(table):  # a check that failed may have had too little of the machine
                ready[name] = (writer.files[name], table)

        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="early-scores", initializer=step_back)
        under_way: list[Future[None]] = []
        try:
            yield lambda name: under_way.append(pool.submit(make, name))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
        close_pools(of=LAST)
        for future in under_way:
            if error := future.exception():
                _log.warning("A shard could not be scored early; its stage will try again: %s", error)


def taken(key: str, files: Mapping[str, FileRecord]) -> dict[str, pa.Table]:
    """The tables that wait under a key for shards with these bytes; they wait no longer."""
    ready = _waiting.pop(key, {})
    return {name: table for name, (record, table) in ready.items() if files.get(name) == record}
