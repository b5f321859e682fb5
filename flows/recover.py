"""After a kill, Prefect still believes that the run is going on. Set right what only a dead process could have left."""

import hashlib

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType, FlowRunFilterTags
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run
from prefect.states import Crashed

from grpo_core.storage import Store

_ALIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def tag_of(identity: str) -> str:
    """The Prefect tag under which all flow runs of one training run are found."""
    return f"grpo-run-{identity}"


def tag_of_folder(run_dir: str) -> str:
    """The tag of a flow run from its first moment on, before the run's identity is known; tells no path."""
    return f"grpo-folder-{hashlib.sha256(Store(run_dir).uri.encode()).hexdigest()[:16]}"


def claim_flow_run(identity: str, run_dir: str) -> int:
    """Tag the current flow run as this training run's and set the ones left running before it to Crashed.

    Safe only while the run's lock is held: then no other process can be working on it.

    Returns:
        How many flow runs were set to Crashed.
    """
    tag = tag_of(identity)
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, tags=sorted({*flow_run.tags, tag}))
        stale = [
            found
            for found in client.read_flow_runs(
                flow_run_filter=FlowRunFilter(
                    tags=FlowRunFilterTags(any_=[tag, tag_of_folder(run_dir)]),
                    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_ALIVE)),
                )
            )
            if str(found.id) != str(flow_run.id)
        ]
        for found in stale:
            client.set_flow_run_state(found.id, Crashed(message="Its process died; the run was resumed."), force=True)
    return len(stale)
