"""Verify a run on a schedule: harm is found before it is needed."""

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from flows.places import Place
from flows.stages import stages_of
from grpo_core.audit.choose import parse_rounds
from grpo_core.errors import UserError
from tasks.run import open_run
from tasks.verify import verify_run


@flow(name="audit")
def audit(
    run_dir: Place,
    rounds: Annotated[str | None, Field(description="1-3 or one number; by default all rounds.")] = None,
    rewards: Annotated[bool, Field(description="Whether rewards and evaluations are scored again.")] = True,
) -> dict[str, Any]:
    """Compare a run's manifests, tables and MLflow record with what they should say, and return the report.

    Raises:
        UserError: something differs; ``grpo-rounds audit verify`` says what.
    """
    report = verify_run(
        open_run(run_dir),
        lambda run, number: [stage for _, stage in stages_of(run, number)],
        rounds=parse_rounds(rounds, "rounds"),
        rewards=rewards,
    )
    if not report.clean:
        raise UserError(f"'{run_dir}' is not what it should be; see what differs: grpo-rounds audit verify {run_dir}")
    return dict(report.as_dict())
