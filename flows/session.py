"""What the commands that touch a run do, from the terminal's side."""

import time
from contextlib import AbstractContextManager
from pathlib import Path

from prefect import tags
from rich.console import Console
from rich.markup import escape

from flows import train as train_module
from flows.changes import describe_changes
from flows.display import Display
from flows.environment import heavy_imports
from flows.evaluate import evaluate_round
from flows.preflight import check_config
from flows.recover import tag_of_folder
from flows.stages import first_incomplete
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from grpo_core.storage import Store
from tasks.run import Run, RunIsHeld, open_run, single_writer
from tasks.stage import set_listener
from tasks.summary import round_summary
from tasks.tracking import Tracker


def train_session(config: RunConfig, run_dir: str, out: Console, server: AbstractContextManager[None]) -> None:
    """Train with a live table, then say where the run is and how to look at it.

    Args:
        server: entered once flows are to be run; what ``start_own_server`` gives.
    """
    began = time.monotonic()
    check_config(config, run_dir)
    for line in describe_changes(run_dir, config):
        out.print(escape(line), soft_wrap=True)
    with heavy_imports():  # while the server comes up; they are needed in any case
        import matplotlib.figure  # noqa: F401
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    with server, Display(out, config.rounds) as display:
        set_listener(display)
        train_module.set_on_round(display.round_complete)
        try:
            with tags(tag_of_folder(run_dir)):
                # The whole path: Prefect may call the flow again, from another working folder.
                train_module.train.with_options(flow_run_name=config.name)(config, Store(run_dir).uri)
        finally:
            set_listener(None)
            train_module.set_on_round(None)
    run = open_run(run_dir)
    minutes = (time.monotonic() - began) / 60
    out.print(f"\n[bold]{config.rounds} rounds done[/bold] in {minutes:.1f} min. {_before_and_after(run)}")
    out.print(f"Run folder:  {escape(run_dir)}", soft_wrap=True)
    tracker = Tracker(run)
    if problem := _sync_alone(run_dir, tracker):
        out.print(f"[yellow]{escape(problem)}[/yellow]", soft_wrap=True)
    out.print(f"In MLflow:   {escape(tracker.ui_command)}", soft_wrap=True)
    out.print(f"Stage by stage: grpo-rounds status {escape(run_dir)}", soft_wrap=True)


def _sync_alone(run_dir: str, tracker: Tracker) -> str | None:
    """Bring the record up to date once more, unless the run is in other hands already: they keep it then."""
    try:
        with single_writer(run_dir):
            return tracker.sync()
    except RunIsHeld:
        return None


def _before_and_after(run: Run) -> str:
    before, after = (round_summary(run, n).get("evaluation", {}) for n in (0, run.config.rounds))
    names = {"accuracy": "greedy", f"avg_at_{run.config.evaluation.samples}": "sampled"}
    parts = [f"{word} {before[m]:.1%} -> {after[m]:.1%}" for m, word in names.items() if m in before and m in after]
    return f"Held-out accuracy: {', '.join(parts)}." if parts else ""


def evaluate_session(run_dir: str, round_number: int | None, as_json: bool, out: Console) -> None:
    """Evaluate one round's policy; the result is an artifact of the run like any other."""
    from flows.cli import echo_json, err

    with Display(out, open_run(run_dir).config.rounds) as display:
        set_listener(display)
        try:
            number, metrics, problem = evaluate_round(run_dir, round_number)
        finally:
            set_listener(None)
    if problem:
        err.print(escape(problem), soft_wrap=True)
    if as_json:
        echo_json({"round": number, **metrics})
        return
    for name, value in metrics.items():
        out.print(f"{name:>18}  {value:.4f}")


def track_session(run_dir: str, out: Console) -> None:
    """Send the whole run folder to MLflow."""
    run = open_run(run_dir)
    tracker = Tracker(run)
    with single_writer(run_dir):  # a run that goes on keeps its own record up
        tracker.sync()
        if first_incomplete(run) > run.config.rounds:
            tracker.set_status("FINISHED")
    if tracker.problem:
        raise UserError(tracker.problem)
    out.print(
        f"MLflow holds the record of {escape(str(Path(run_dir)))}. Look: {escape(tracker.ui_command)}", soft_wrap=True
    )
