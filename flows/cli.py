"""The command line: ``grpo-rounds``. Exit 0 only on success; an error is one sentence on standard error."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows import environment
from flows.audit import audit_app
from grpo_core.errors import UserError
from grpo_core.interrupt import Stopped

environment.prepare(command_line=True)  # the commands below import what is heavy, after this

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="GRPO post-training in durable rounds: filter, generate, score, compute advantages, update, evaluate.",
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's folder or fsspec URI.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one value or one line a row.")]


def echo_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, sort_keys=True))


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write the config.")] = Path("grpo-rounds.yaml"),
) -> None:
    """Write a commented config with every key at its default."""
    from flows.template import commented_config

    if path.exists():
        raise UserError(f"'{path}' exists already; give another name or remove it first.")
    try:
        path.write_text(commented_config(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"'{path}' can't be written ({error.strerror}); give a folder you may write to.") from error
    out.print(
        f"Wrote {escape(str(path))}. Set data.source and model.name in it, then: grpo-rounds train {path} --dry-run"
    )


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML config; see: grpo-rounds init.")],
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", help="The run's folder or fsspec URI; default runs/<name>.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Overrides the config's number of rounds.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides one key; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, say what would be done, and write nothing.")
    ] = False,
) -> None:
    """Train a run, or go on with it where it stands."""
    with environment.heavy_imports():
        from flows.own_server import start_own_server

        server = None if dry_run else start_own_server()
        from grpo_core.config import load_config

    loaded = load_config(config, overrides, rounds)
    folder = run_dir or f"runs/{loaded.name}"
    if server is None:
        from flows.dry_run import describe

        describe(loaded, folder, out)
        return
    with environment.heavy_imports():
        from flows.session import train_session

    train_session(loaded, folder, out, server)


@app.command()
def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML config.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides one key; repeatable.")
    ] = None,
    gpu_count: Annotated[int | None, typer.Option("--gpus", min=1, help="Plan for so many GPUs, not for here.")] = None,
    gpu_memory: Annotated[
        float | None, typer.Option("--gpu-memory", min=1, metavar="GIB", help="Memory of each of these GPUs.")
    ] = None,
    tflops: Annotated[
        float | None, typer.Option("--tflops", min=0.001, help="Peak of a device, instead of measured or known rates.")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option("--model-config", metavar="FILE", help="The model's config.json, if it isn't here.")
    ] = None,
    mean_completion: Annotated[
        int | None,
        typer.Option("--mean-completion", min=1, metavar="TOKENS", help="Assumed; default half of max_new_tokens."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a run will take: memory a stage, tokens, hours, disk. Exit 2 when it can't fit."""
    from flows.plan import machine_given, plan_session
    from grpo_core.config import load_config

    plan_session(
        load_config(config, overrides),
        config,
        machine=machine_given(gpu_count, gpu_memory, tflops),
        model_config=model_config,
        mean_completion=mean_completion,
        tflops=tflops,
        as_json=as_json,
        out=out,
    )


@app.command()
def resume(
    run: RunArgument,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Let the run have so many rounds from now on.")
    ] = None,
) -> None:
    """Go on with a run by the config in its folder."""
    with environment.heavy_imports():
        from flows.own_server import start_own_server

        server = start_own_server()
        from flows.session import train_session
        from tasks.run import open_run

    config = open_run(run).config
    config = config if rounds is None else config.model_copy(update={"rounds": rounds})
    train_session(config, run, out, server)


@app.command()
def status(run: RunArgument, as_json: JsonOption = False) -> None:
    """Prove every artifact of a run and say how each stage stands and why."""
    from flows.stages import examine
    from tasks.run import open_run

    opened = open_run(run)
    last = min(opened.config.rounds, max(opened.rounds_on_disk(), default=0) + 1)
    statuses = [found for number in range(last + 1) for found in examine(opened, number)]
    done = min((s.round for s in statuses if not s.condition.done), default=last + 1) - 1
    if as_json:
        stages = [
            {"round": s.round, "stage": s.stage, "state": s.condition.state, "why": s.condition.why} for s in statuses
        ]
        echo_json({"run": opened.uri, "rounds": opened.config.rounds, "rounds_done": max(done, 0), "stages": stages})
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("round", "stage", "state", "why"):
        table.add_column(heading)
    colours = {"done": "green", "missing": "yellow", "stale": "magenta", "damaged": "red"}
    for s in statuses:
        colour = colours[s.condition.state]
        table.add_row(str(s.round), s.stage, f"[{colour}]{s.condition.state}[/{colour}]", escape(s.condition.why))
    out.print(table)
    left = 0 if opened.branch else opened.config.rounds - max(done, 0)
    out.print(
        f"{max(done, 0)} of {opened.config.rounds} rounds done." + (f" Go on: grpo-rounds resume {run}" if left else "")
    )


@app.command()
def score(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.jsonl", help="Rows of response and gold, or tests for code; id is optional.")
    ],
    reward: Annotated[str, typer.Option("--reward", help="A reward's name, or package.module:function.")] = "math",
    as_json: JsonOption = False,
) -> None:
    """Try a reward on the rows of a JSONL file; prints id, reward, verdict and seconds for each."""
    from flows.score import score_session

    score_session(file, reward, as_json, out)


@app.command()
def evaluate(
    run: RunArgument,
    round_number: Annotated[int | None, typer.Option("--round", help="Which policy; default the newest.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a policy of a run on its held-out prompts and keep the answers in the run."""
    from flows.session import evaluate_session

    evaluate_session(run, round_number, as_json, out)


@app.command()
def rescore(
    run: RunArgument,
    reward: Annotated[
        str | None, typer.Option("--reward", help="Another reward's name; default the run's own, as its code is now.")
    ] = None,
    advantage: Annotated[
        str | None, typer.Option("--advantage", metavar="ESTIMATOR", help="Another advantage estimator.")
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Make the policies, too, from the stored rollouts.")
    ] = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="With --retrain: measure the last policy on the held-out prompts.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="A key of reward, advantage or update; repeatable."),
    ] = None,
    rounds: Annotated[str | None, typer.Option("--rounds", metavar="1-3", help="Which rounds; default all.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the branch; default made of what it changes.")] = None,
    out_dir: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="The branch's folder; default RUN/branches/<name>.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Branch a run: other rewards, advantages or updates on its stored rollouts, and what they would change."""
    from flows.branch import Wish
    from flows.rescore import rescore_session

    wish = Wish(
        reward=reward,
        advantage=advantage,
        overrides=tuple(overrides or ()),
        retrain=retrain,
        evaluate=evaluate,
        rounds=rounds,
        name=name,
        out=out_dir,
    )
    rescore_session(run, wish, as_json, out)


app.add_typer(audit_app, name="audit")


@app.command()
def track(run: RunArgument) -> None:
    """Rebuild MLflow's record of a run from its folder; what is there already stays as it is."""
    from flows.session import track_session

    track_session(run, out)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what is installed, which device and which engine would run."""
    from flows.doctor import doctor_session

    doctor_session(as_json, out)


def _fail(message: str, code: int) -> NoReturn:
    err.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
    # Leave at once: Prefect's embedded server may still have threads that wait.
    sys.stdout.flush()
    raise SystemExit(code)


def _is_prefect_gone(error: Exception) -> bool:
    import httpx

    return isinstance(error, httpx.TransportError)


def main() -> None:
    """Entry point of the console script."""
    try:
        app(standalone_mode=False)
    except UserError as error:
        _fail(str(error), 2)
    except typer.Exit as leave:
        raise SystemExit(leave.exit_code) from None
    except typer.Abort:
        _fail("stopped; finished work is kept, go on with the same command.", 130)
    except KeyboardInterrupt:
        _fail("stopped; finished work is kept, go on with the same command.", 130)
    except Stopped:
        from flows.stopping import EXIT_CODE

        err.print("[red]stopped[/red] by SIGTERM; finished work is kept, go on with the same command.", soft_wrap=True)
        sys.stdout.flush()
        os._exit(EXIT_CODE)  # an orderly end of the interpreter may take seconds; what are our children end with us
    except typer.TyperException as error:
        usage: Any = error  # typer doesn't export the class that has these two
        usage.show()
        raise SystemExit(usage.exit_code) from None
    except Exception as error:
        if os.environ.get("GRPO_ROUNDS_DEBUG"):
            raise
        if _is_prefect_gone(error):
            err.print(
                f"[red]error:[/red] Prefect's server does not answer ({escape(str(error))}); finished work is kept: "
                "start it again, or unset PREFECT_API_URL to do without one, and go on with the same command.",
                soft_wrap=True,
            )
            sys.stdout.flush()
            os._exit(1)  # Prefect would try for minutes to tell a server that is gone about the end
        _fail(
            f"{type(error).__name__}: {error}; finished work is kept. GRPO_ROUNDS_DEBUG=1 shows where it happened.", 1
        )
