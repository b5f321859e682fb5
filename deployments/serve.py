"""``grpo-rounds serve``: a run's deployments on a Prefect server, run by this process or by a pool's workers."""

import os
from dataclasses import dataclass
from pathlib import Path

import httpx
import prefect
from prefect.client.orchestration import get_client
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from rich.console import Console
from rich.markup import escape

from deployments.automations import ensure_automation, zombies
from deployments.pools import ensure_pool
from deployments.registry import Slots, build
from flows.leases import lease_warning
from flows.preflight import check_config
from grpo_core.config import RunConfig, apply_overrides, load_config, parse_config
from grpo_core.errors import UserError
from grpo_core.storage import Store
from tasks.run import CONFIG, open_run


@dataclass(frozen=True, slots=True)
class Order:
    """What to serve, as the command line says it."""

    what: str
    run_dir: str | None
    rounds: int | None
    overrides: tuple[str, ...]
    name: str | None
    slots: Slots

    def config_and_place(self) -> tuple[RunConfig, str]:
        """The config and the run's whole path or URI. Raises UserError when there is neither config nor run."""
        if Path(self.what).is_file():
            config = load_config(Path(self.what), list(self.overrides), self.rounds)
            return config, Store(self.run_dir or f"runs/{config.name}").uri
        if not Store(self.what).exists(CONFIG):
            raise UserError(f"'{self.what}' is neither a config file nor a run; give one of them.")
        if self.run_dir:
            raise UserError(f"'{self.what}' is a run already; --run-dir goes with a config file.")
        values = open_run(self.what).config.model_dump(mode="json")
        apply_overrides(values, list(self.overrides))
        if self.rounds:
            values["rounds"] = self.rounds
        return parse_config(values, f"The config of '{self.what}'"), Store(self.what).uri


def serve_session(order: Order, pool: str | None, pool_type: str | None, gpus: int, out: Console) -> None:
    """Register the deployments and the automation, then serve until stopped, or leave where a pool's workers do that.

    Raises:
        UserError: no server, or one that does not answer; a config that can't run; a name that is taken.
    """
    if not get_current_settings().api.url:
        raise UserError(
            "serve needs a Prefect server that stays; start one with: prefect server start, and set PREFECT_API_URL to "
            "http://127.0.0.1:4200/api."
        )
    config, place = order.config_and_place()
    check_config(config, place)
    name = order.name or config.name
    try:
        warning = lease_warning()
        kind = ensure_pool(pool, pool_type) if pool else None
        deployments = build(
            config, place, name, order.slots, {"name": pool, "type": kind} if pool and kind else None, gpus
        )
        _refuse_taken(deployments, place)
        ensure_automation(zombies())
    except httpx.TransportError as error:
        raise UserError(
            f"Prefect's server at {get_current_settings().api.url} does not answer; start it: prefect server start"
        ) from error
    if warning:
        out.print(f"[yellow]{escape(warning)}[/yellow]", soft_wrap=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    for deployment in deployments:
        if pool:
            deployment.apply(work_pool_name=pool)
        out.print(f"{deployment.flow_name}/{deployment.name}", soft_wrap=True)
    if pool:
        out.print(f"Start a worker where the run's folder is: prefect worker start --pool {escape(pool)}")
        return
    prefect.serve(*deployments, pause_on_shutdown=False, print_starting_message=False)


def _refuse_taken(deployments: list[RunnerDeployment], place: str) -> None:
    with get_client(sync_client=True) as client:
        for deployment in deployments:
            try:
                found = client.read_deployment_by_name(f"{deployment.flow_name}/{deployment.name}")
            except ObjectNotFound:
                continue
            if found.parameters.get("run_dir") != place:
                raise UserError(
                    f"The deployment {deployment.flow_name}/{deployment.name} serves another run, "
                    f"'{found.parameters.get('run_dir')}'; give this one a --name."
                )
