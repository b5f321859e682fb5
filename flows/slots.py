"""A slot of the schedule that was missed is caught up once, however many were missed while nothing could start them."""

from datetime import UTC, datetime

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled


def cancel_missed_slots() -> int:
    """Cancel the slots of this flow run's schedule whose time has come and that nobody has started: this run is theirs.

    What a user asked for stays: runs made by hand, and retries.

    Returns:
        How many were cancelled.
    """
    if deployment.id is None:
        return 0
    with get_client(sync_client=True) as client:
        missed = [
            found
            for found in client.read_flow_runs(
                flow_run_filter=FlowRunFilter(
                    deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]),
                    state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Scheduled", "Late"])),
                    expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),
                )
            )
            if found.auto_scheduled and str(found.id) != str(flow_run.id)
        ]
        for found in missed:
            client.set_flow_run_state(found.id, Cancelled(message=f"Missed; {flow_run.name} caught up once for all."))
    return len(missed)
