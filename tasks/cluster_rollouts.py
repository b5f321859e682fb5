"""A round's rollouts by engines on a Ray cluster, each with shards of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.artifacts import Artifact
from grpo_core.canary import check_canary
from grpo_core.cluster import ClusterConfig
from grpo_core.generation.open import open_engine
from grpo_core.generation.shards import RolloutJob, make_shards
from tasks.cluster import in_chunks, on_cluster, opened, ticket
from tasks.run import Run


@task(name="rollouts_on_cluster", cache_policy=NO_CACHE, persist_result=False)
def rollouts_on_cluster(order: Mapping[str, Any], start: int, job: str, names: Sequence[str]) -> float:
    """In a worker: write these shards and their marks, but those that lie there already.

    Args:
        start: the round whose policy generates.
        job: a ``RolloutJob`` as JSON.

    Returns:
        The canary's mean difference in nats.
    """
    wanted = RolloutJob.model_validate_json(job)
    with opened(order) as run, run.local_policy(start) as folder:
        artifact = Artifact(run.store, wanted.folder)
        # A worker before this one may have died in the middle.
        missing = [name for name in names if artifact.marked(name, wanted.fingerprint) is None]
        with open_engine(folder, wanted.model, wanted.generation) as engine:
            difference = check_canary(engine, folder)
            for _ in make_shards(wanted, engine, missing):
                pass
    return difference


def generate_on_cluster(run: Run, start: int, job: RolloutJob, names: Sequence[str], look: Callable[[], None]) -> float:
    """Have these shards written by the cluster; returns the first engine's canary, which is looked at in any case.

    Args:
        look: called every few seconds, and when all are written.
    """
    config: ClusterConfig = run.config.cluster
    order, told = ticket(run), job.model_dump_json()
    calls = [
        {"order": order, "start": start, "job": told, "names": chunk}
        for chunk in in_chunks(names, config.engines) or [[]]
    ]
    resources = {"num_cpus": config.cpus_per_engine, "num_gpus": config.gpus_per_engine}
    differences = on_cluster(config, rollouts_on_cluster, calls, resources, look)
    return float(differences[0])
