"""A round's rewards by workers of a Ray cluster, each with shards of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.artifacts import Artifact, ArtifactWriter
from grpo_core.rewards import smoothing
from grpo_core.rewards.config import RewardConfig
from tasks.cluster import in_chunks, on_cluster, opened, ticket
from tasks.reward_tables import is_sound, open_tables
from tasks.run import Run


@task(name="scores_on_cluster", cache_policy=NO_CACHE, persist_result=False)
def scores_on_cluster(
    order: Mapping[str, Any],
    round_number: int,
    config: str,
    past: smoothing.State,
    folder: str,
    fingerprint: str,
    names: Sequence[str],
) -> dict[str, bytes]:
    """In a worker: write these shards of rewards and their marks, but those that lie there already.

    Args:
        config: of the reward, as JSON.
        folder: of the artifact, within the run.

    Returns:
        Tables with too many failed checks, as Arrow streams by name: whether they are written depends on the round.
    """
    reward = RewardConfig.model_validate_json(config)
    doubtful = {}
    with opened(order) as run, open_tables(run, round_number, reward, past) as tables:
        artifact = Artifact(run.store, folder)
        for name in names:
            if artifact.marked(name, fingerprint) is not None:
                continue
            _, table = tables.make(name)
            if is_sound(table, reward.max_unchecked):
                artifact.write_table(name, table, fingerprint)
            else:
                doubtful[name] = _to_bytes(table)
    return doubtful


def score_on_cluster(
    run: Run,
    round_number: int,
    config: RewardConfig,
    past: smoothing.State,
    writer: ArtifactWriter,
    names: Sequence[str],
    look: Callable[[], None],
) -> dict[str, pa.Table]:
    """Have these shards scored by the cluster; returns the tables that it has not written, by name.

    Args:
        look: called every few seconds, and when all are scored.
    """
    cluster = run.config.cluster
    call = {
        "order": ticket(run),
        "round_number": round_number,
        "config": config.model_dump_json(),
        "past": past,
        "folder": writer.artifact.location,
        "fingerprint": writer.fingerprint.digest,
    }
    calls = [{**call, "names": chunk} for chunk in in_chunks(names, cluster.scorers)]
    resources = {"num_cpus": cluster.cpus_per_scorer, "num_gpus": cluster.gpus_per_scorer}
    found: dict[str, pa.Table] = {}
    for doubtful in on_cluster(cluster, scores_on_cluster, calls, resources, look):
        found |= {name: pa.ipc.open_stream(data).read_all() for name, data in doubtful.items()}
    return found


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())
