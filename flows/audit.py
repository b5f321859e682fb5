"""``grpo-rounds audit``: what a run's rollouts were and did; ``audit verify``: whether its record is true."""

import json
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_SHOWN = 50  # rows on a terminal


class _RunFirst(TyperGroup):
    """Lets ``audit RUN`` stand beside ``audit verify RUN``: all but that one word is for ``show``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] in (["verify"], ["show"]) else ["show", *args])


audit_app = typer.Typer(
    cls=_RunFirst,
    subcommand_metavar="[verify] RUN [OPTIONS]",
    help="Ask a run about its rollouts; or prove its record: audit verify RUN.",
)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's folder or fsspec URI.")]


@audit_app.command("show")
def show(
    run: RunArgument,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="ID", help="Only this prompt's; the id, or how it begins.")
    ] = None,
    verdict: Annotated[
        str | None, typer.Option("--verdict", help="ok, wrong, unparsable, timeout, error, missing or unscored.")
    ] = None,
    rounds: Annotated[str | None, typer.Option("--round", metavar="N or A-B", help="Only these rounds'.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME[:ROW]", help="What became of rows of the data.")
    ] = None,
    worst: Annotated[int | None, typer.Option("--worst", min=1, help="The so many with the least reward.")] = None,
    best: Annotated[int | None, typer.Option("--best", min=1, help="The so many with the greatest reward.")] = None,
    rollout: Annotated[
        str | None, typer.Option("--rollout", metavar="ID", help="All of one rollout; the id, or how it begins.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="ROUND:STEP", help="The rollouts that made one optimiser step.")
    ] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="SELECT", help="Any question; the tables stand in docs/audit.md.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, help=f"Rows at most, 0 for all; {_SHOWN} unless --json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value, with every row.")] = False,
) -> None:
    """Show a run by round, or the rollouts that every filter lets through. To prove a run: audit verify RUN."""
    from flows.audit_tables import print_answer
    from flows.cli import out
    from grpo_core.audit.ask import Question, ask
    from grpo_core.storage import Store

    most = (None if as_json else _SHOWN) if limit is None else limit or None
    answer = ask(Store(run), Question(prompt, verdict, rounds, source, worst, best, rollout, step, sql, most))
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
    else:
        print_answer(answer, run, out)


@audit_app.command("verify")
def verify(
    run: RunArgument,
    rounds: Annotated[
        str | None, typer.Option("--rounds", metavar="N or A-B", help="Only these rounds; default all.")
    ] = None,
    rewards: Annotated[
        bool, typer.Option("--rewards/--no-rewards", help="Score the stored texts again, or not.")
    ] = True,
    models: Annotated[
        bool, typer.Option("--models", help="Score again with judges and reward models, too: costs what they cost.")
    ] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Compare MLflow's record, or not.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value, with every difference.")] = False,
) -> None:
    """Recompute a run from its stored rows, compare it with MLflow's record, name each difference; exit 1 on any."""
    from flows.audit_verify import verify_session
    from flows.cli import out

    if not verify_session(run, rounds, rewards, models, mlflow, as_json, out):
        raise SystemExit(1)  # typer's own Exit would end with 0: main() doesn't run it standalone
