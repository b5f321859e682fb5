"""After a kill, Prefect still believes that the run is going on. Set right what only a dead process could have left."""

import hashlib
from collections.abc import Sequence

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType, FlowRunFilterTags
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run
from prefect.states import Crashed

from grpo_core.storage import Store

_ALIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]

TAG = "grpo-rounds"  # every flow run that writes a training run has it; the automation for zombies looks for it


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
    change_tags(add=[TAG, tag])
    with get_client(sync_client=True) as client:
        stale = [
            found
            for found in client.read_flow_runs(
                flow_run_filter=FlowRunFilter(
                    tags=FlowRunFilterTags(any_=[tag, tag_of_folder(run_dir)]),
                    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_ALIVE)),
                )
            )
            # One that a worker is about to start is alive: it waits for its process.
            if str(found.id) != str(flow_run.id) and not (found.deployment_id and found.state_type == StateType.PENDING)
        ]
        for found in stale:
            client.set_flow_run_state(found.id, Crashed(message="Its process died; the run was resumed."), force=True)
    return len(stale)


def release_flow_run() -> None:
    """Take the training run's tag off the current flow run while it waits for the lock.

    A flow run that is retried brings the tag with it, and the lock's holder would take it for dead.
    """
    change_tags(drop=tag_of(""))


def change_tags(add: Sequence[str] = (), drop: str | None = None) -> None:
    """Add tags to the current flow run and drop those that begin so; what else it has by now stays."""
    with get_client(sync_client=True) as client:
        tags = client.read_flow_run(flow_run.id).tags
        wanted = sorted({*add, *(tag for tag in tags if drop is None or not tag.startswith(drop))})
        if wanted != sorted(tags):
            client.update_flow_run(flow_run.id, tags=wanted)
