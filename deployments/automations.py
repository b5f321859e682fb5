"""The automation that finds the dead: a flow run whose heartbeats end without an end of its own is set to Crashed.

A worker that dies with its machine can't say so. Its flow run would stay Running and hold its deployment's one place.
"""

from datetime import timedelta

from prefect.automations import ChangeFlowRunState, EventTrigger, Posture, ResourceSpecification
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.schemas.automations import AutomationCore

from flows.recover import TAG

NAME = "grpo-rounds: zombies are crashed"
SILENCE_SECONDS = 90  # three heartbeats (flows/environment.py)
_HEARTBEAT = "prefect.flow-run.heartbeat"
# After these no heartbeat is due: the flow run has ended, or it waits to be started again.
_SILENT = (
    *("Completed", "Failed", "Cancelled", "Crashed", "TimedOut"),
    *("Scheduled", "Late", "AwaitingRetry", "AwaitingConcurrencySlot", "Paused", "Suspended"),
)


def zombies(silence_seconds: float = SILENCE_SECONDS, tag: str = TAG) -> AutomationCore:
    """The automation for flow runs with this tag. ``silence_seconds`` must exceed the interval of their heartbeats."""
    return AutomationCore(
        name=NAME if tag == TAG else f"{NAME} ({tag})",
        description="Heartbeats stopped without an end: the process died with its machine.",
        enabled=True,
        trigger=EventTrigger(
            after={_HEARTBEAT},
            expect={_HEARTBEAT, *(f"prefect.flow-run.{state}" for state in _SILENT)},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}
            ),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=silence_seconds),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message="Its process fell silent; it is taken for dead.")],
    )


def ensure_automation(wanted: AutomationCore) -> None:
    """Create the automation, or bring the one of this name up to date; doing it again changes nothing."""
    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(wanted.name)
        if not found:
            client.create_automation(wanted)
            return
        client.update_automation(found[0].id, wanted)
        for double in found[1:]:
            client.delete_automation(double.id)
