"""The table of deployments: which flow, when, how many at once, on how many GPUs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from prefect import Flow
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.schedules import Cron, Interval, Schedule
from prefect.types.entrypoint import EntrypointType

from deployments.pools import job_variables
from flows import environment
from flows.audit_flow import audit
from flows.campaign import campaign
from flows.evaluate import evaluate
from flows.next_round import next_round
from flows.recover import TAG
from flows.rescore import rescore
from grpo_core.config import RunConfig
from grpo_core.errors import UserError


@dataclass(frozen=True, slots=True)
class Entry:
    """One deployment.

    Attributes:
        collision: what becomes of a flow run for which there is no place; None where any number may run at once.
        needs_gpu: False for what runs on CPUs only.
        takes_config: whether the run's config is a parameter.
    """

    flow: Flow[..., Any]
    collision: ConcurrencyLimitStrategy | None
    needs_gpu: bool
    takes_config: bool = False
    is_scheduled: bool = False


TABLE = (
    Entry(next_round, ConcurrencyLimitStrategy.CANCEL_NEW, needs_gpu=True, takes_config=True, is_scheduled=True),
    Entry(campaign, ConcurrencyLimitStrategy.ENQUEUE, needs_gpu=True, takes_config=True),
    Entry(evaluate, ConcurrencyLimitStrategy.ENQUEUE, needs_gpu=True),
    Entry(rescore, None, needs_gpu=False),
    Entry(audit, None, needs_gpu=False),
)

# A flow run that was taken on and never began keeps its place for so long; one that runs renews its lease.
_GRACE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Slots:
    """When next-round shall run. Raises UserError when it can't be read."""

    cron: str | None = None
    interval: float | None = None  # seconds
    timezone: str | None = None

    def schedule(self) -> Schedule | None:
        if self.cron and self.interval:
            raise UserError("--cron and --interval are two schedules; give one.")
        try:
            if self.cron:
                return Cron(self.cron, timezone=self.timezone)
            if self.interval:
                return Interval(timedelta(seconds=self.interval), timezone=self.timezone)
        except ValueError as error:
            raise UserError(f"The schedule can't be read: {_first(error)}; give --cron '0 3 * * *', say.") from error
        if self.timezone:
            raise UserError("--timezone says nothing without --cron or --interval; give one of them.")
        return None


def _first(error: ValueError) -> str:
    lines = str(error).splitlines()
    return (lines[-1] if len(lines) == 1 else lines[2]).strip().rstrip(".")


def build(
    config: RunConfig, run_uri: str, name: str, slots: Slots, pool: Mapping[str, str] | None = None, gpus: int = 1
) -> list[RunnerDeployment]:
    """The deployments of one run.

    Args:
        run_uri: the run's whole path or URI.
        name: the deployments' common name; ``next-round/<name>`` and so on.
        pool: ``name`` and ``type`` of the work pool whose workers shall run them; None to serve them.
        gpus: how many GPUs a flow run asks for whose stages use one.
    """
    return [_deployment(entry, config, run_uri, name, slots, pool, gpus) for entry in TABLE]


def _deployment(
    entry: Entry,
    config: RunConfig,
    run_uri: str,
    name: str,
    slots: Slots,
    pool: Mapping[str, str] | None,
    gpus: int,
) -> RunnerDeployment:
    parameters: dict[str, Any] = {"run_dir": run_uri}
    if entry.takes_config:
        parameters["config"] = config.model_dump(mode="json")
    limit = None
    if entry.collision:
        limit = ConcurrencyLimitConfig(limit=1, collision_strategy=entry.collision, grace_period_seconds=_GRACE_SECONDS)
    where: dict[str, Any] = {}
    if pool:
        wanted = job_variables(pool["type"], gpus if entry.needs_gpu else 0, environment.for_workers(), os.getcwd())
        where = {"work_pool_name": pool["name"], "job_variables": wanted}
    made = entry.flow.to_deployment(
        name,
        schedule=slots.schedule() if entry.is_scheduled else None,
        concurrency_limit=limit,
        parameters=parameters,
        tags=[TAG],
        description=entry.flow.description,
        enforce_parameter_schema=True,
        entrypoint_type=EntrypointType.MODULE_PATH,
        **where,
    )
    return cast(RunnerDeployment, made)  # Prefect types it as if it might be awaited
