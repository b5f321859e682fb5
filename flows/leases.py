"""Whether the Prefect server in use keeps its concurrency leases through a restart."""

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

_IN_MEMORY = "prefect.server.concurrency.lease_storage.memory"
SETTING = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE=prefect.server.concurrency.lease_storage.filesystem"


def lease_warning() -> str | None:
    """One sentence when a restart of the server would end the runs that go on; None where all is well or unknown.

    Raises:
        httpx.TransportError: the server does not answer.
    """
    # Asked first of all, and once: who waits at a terminal is told at once that nobody is there.
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        try:
            answer = client.request("GET", "/admin/settings")
            storage = answer.raise_for_status().json()["server"]["concurrency"]["lease_storage"]
        except (httpx.HTTPStatusError, KeyError):  # a server that does not tell its settings
            return None
    if storage != _IN_MEMORY:
        return None
    return (
        f"Prefect's server forgets its leases when it restarts, and ends a round that goes on; start it with {SETTING}"
    )
