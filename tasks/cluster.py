"""Chunks of shards on a Ray cluster, a Prefect task each: sent, watched, and their results brought home.

What a worker finishes lies in the run with its mark, so a dead worker, or a dead run, costs the shard that was being
made. Workers open the run by its URI and write nothing but shards; the run's own process, which holds the lock, takes
them up and makes all the rest.
"""

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from grpo_core import interrupt
from grpo_core.artifacts import ArtifactWriter
from grpo_core.cluster import ClusterConfig
from grpo_core.errors import UserError
from grpo_core.lease import borrowing, lease_over
from tasks.run import Run, open_run

_LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_on_cluster(run: Run, writer: ArtifactWriter) -> bool:
    """Whether workers do this work: the run has a cluster, and it is the run's own artifact that is made."""
    return run.config.cluster.address is not None and writer.store.uri == run.store.uri


def in_chunks(names: Sequence[str], count: int) -> list[list[str]]:
    """The names in at most so many runs of neighbours, as even as can be."""
    count = min(count, len(names))
    ends = [number * len(names) // count for number in range(count + 1)] if count else []
    return [list(names[start:end]) for start, end in pairwise(ends)]


def ticket(run: Run) -> dict[str, Any]:
    """What a worker needs to open the run, to be sure that it is this one, and to stop when its lock is another's."""
    import torch

    lease = None if run.store.is_local else lease_over(f"{run.store.root}/")
    return {
        "uri": run.uri,
        "identity": run.identity,
        "owner": lease and lease.owner,
        "host": socket.gethostname(),
        "threads": torch.get_num_threads(),
    }


@contextmanager
def opened(order: Mapping[str, Any]) -> Iterator[Run]:
    """In a worker: the run of a ticket.

    Raises:
        UserError: this machine does not see it.
        LeaseLost: at a write, when the process that sent the ticket holds the lock no longer.
    """
    import torch

    torch.set_num_threads(order["threads"])  # as many as the run's own process has: their number may decide bits
    try:
        run = open_run(order["uri"])
        is_the_same = run.identity == order["identity"]
    except UserError:
        is_the_same = False
    if not is_the_same:
        raise UserError(
            f"The Ray worker on {socket.gethostname()} does not see the run of {order['host']} at '{order['uri']}'; "
            "give a run folder in an object store (s3://…), or one on a disk that all machines share."
        )
    if order["owner"] is None or run.store.objects is None:
        yield run
        return
    with borrowing(run.store.objects, run.store.root, order["owner"], run.uri):
        yield run


def on_cluster(
    config: ClusterConfig,
    task: Any,
    calls: Sequence[Mapping[str, Any]],
    resources: Mapping[str, float],
    look: Callable[[], None],
) -> list[Any]:
    """What a Prefect task returns for each of these parameters, by workers of the cluster at the same time.

    Args:
        resources: ``num_cpus`` and ``num_gpus`` of each call.
        look: called every few seconds and at the end.

    Raises:
        UserError: what a worker has raised, or the cluster can't do the work.
        Stopped: that was asked for; what is under way is given up.
    """
    from prefect_ray import RayTaskRunner
    from prefect_ray.context import remote_options

    ray = _connect(config, resources)
    with get_client(sync_client=True) as client:
        api = str(client.api_url)  # of the temporary server, too, which no setting names
    if urlsplit(api).hostname in _LOOPBACK and len([node for node in ray.nodes() if node["Alive"]]) > 1:
        raise UserError(
            f"Workers on other machines can't reach Prefect's server at {api}; set PREFECT_API_URL to one that they "
            "can reach, here and where Ray was started."
        )
    options = {**resources, "max_retries": config.retries}
    with (
        temporary_settings({PREFECT_API_URL: api}),
        RayTaskRunner(address=config.address) as runner,
        remote_options(**options),
    ):
        futures = [runner.submit(task, parameters=dict(call)) for call in calls]
        waiting = [future.wrapped_future for future in futures]
        try:
            while waiting:
                _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_SECONDS)
                look()
                interrupt.safe_point()
            return [future.result() for future in futures]
        except ray.exceptions.RayError as error:
            raise UserError(
                f"A Ray worker could not do its work ({str(error).strip().splitlines()[0]}); finished shards are kept: "
                "see to the cluster and give the same command again."
            ) from error
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)


def _require_answer(address: str) -> None:
    """Ray itself would try for minutes. Raises UserError when an address with a port is nobody's."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> UserError:
    return UserError(
        f"cluster.address '{address}' can't be reached ({str(error).strip().splitlines()[0]}); start Ray there "
        "(ray start --head), or set it to local."
    )


def _connect(config: ClusterConfig, resources: Mapping[str, float]) -> Any:
    """Ray, connected to the cluster for the rest of this process."""
    try:
        import prefect_ray  # noqa: F401
        import ray
    except ImportError as error:
        raise UserError("cluster.address needs Ray; install it with: pip install 'grpo-rounds[ray]'") from error
    if not ray.is_initialized():
        _require_answer(str(config.address))
        alone = {"include_dashboard": False} if config.address == "local" else {}
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=config.address, namespace="prefect", log_to_driver=False, logging_level="ERROR", **alone)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise _unreachable(str(config.address), error) from error
        finally:
            if is_main:
                signal.signal(signal.SIGTERM, before)  # Ray takes it, and we stop politely
    there = ray.cluster_resources()
    for name, kind, key in (("num_gpus", "GPU", "gpus"), ("num_cpus", "CPU", "cpus")):
        if resources[name] > there.get(kind, 0):
            raise UserError(
                f"cluster asks for {resources[name]:g} {kind} a worker, and the whole cluster has "
                f"{there.get(kind, 0):g}; lower cluster.{key}_per_engine or cluster.{key}_per_scorer."
            )
    return ray
