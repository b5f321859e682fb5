"""``grpo-rounds`` with all its commands: those of ``flows/cli.py``, and ``serve``, which needs this floor."""

from typing import Annotated

import typer

from flows import cli, environment
from flows.cli import app, main

__all__ = ["app", "main"]


@app.command()
def serve(
    what: Annotated[str, typer.Argument(metavar="CONFIG|RUN", help="A YAML config, or the folder or URI of a run.")],
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", help="With a config: the run's folder or URI; default runs/<name>.")
    ] = None,
    cron: Annotated[str | None, typer.Option("--cron", help="When next-round runs, as '0 3 * * *'.")] = None,
    interval: Annotated[
        float | None, typer.Option("--interval", min=1, metavar="SECONDS", help="Run next-round every so often.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option("--timezone", help="Of --cron, as Europe/Berlin; default UTC.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="How many rounds the run shall have; overrides the config.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides one key; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The deployments' name; default the config's.")] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Register for the workers of this pool and leave; default: serve here.")
    ] = None,
    pool_type: Annotated[
        str | None, typer.Option("--pool-type", help="Of a pool that is made: process (default), docker, kubernetes.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs for a round, with --pool.")] = 1,
) -> None:
    """Register a run's deployments with a Prefect server and run what its schedule or a user asks for."""
    environment.speak()
    from deployments.registry import Slots
    from deployments.serve import Order, serve_session

    order = Order(what, run_dir, rounds, tuple(overrides or ()), name, Slots(cron, interval, timezone))
    serve_session(order, pool, pool_type, gpus, cli.out)


if __name__ == "__main__":
    main()
