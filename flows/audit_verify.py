"""``grpo-rounds audit verify``: the proof of a run, with a bar while it goes on and every difference by name."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from flows.audit_tables import safe
from flows.stages import stages_of
from grpo_core.audit.ask import as_plain
from grpo_core.audit.choose import parse_rounds
from tasks.run import open_run
from tasks.verify import verify_run

_SHOWN = 5  # of each kind in each place


def verify_session(
    run_dir: str, rounds: str | None, rewards: bool, models: bool, mlflow: bool, as_json: bool, out: Console
) -> bool:
    """Verify a run and tell what was found; True when nothing differs."""
    from flows.cli import echo_json, err

    wanted = parse_rounds(rounds, "--rounds")
    run = open_run(run_dir)
    with Progress(
        SpinnerColumn(), TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=err, transient=True, disable=not err.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("verifying", total=None)
        report = verify_run(
            run,
            lambda opened, number: [stage for _, stage in stages_of(opened, number)],
            rounds=wanted,
            rewards=rewards,
            models=models,
            mlflow=mlflow,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        echo_json(as_plain(report.as_dict()))
    else:
        _print(report.as_dict(), out)
    return report.clean


def _print(report: Mapping[str, Any], out: Console) -> None:
    def say(text: str, style: str = "") -> None:
        out.print(Text(text, style=style), soft_wrap=True)

    kinds = Counter((found["where"], found["what"]) for found in report["differences"])
    told: Counter[tuple[str, str]] = Counter()
    for found in report["differences"]:
        kind = (found["where"], found["what"])
        told[kind] += 1
        if told[kind] <= _SHOWN:
            say(_sentence(found), "red")
        if told[kind] == kinds[kind] and kinds[kind] > _SHOWN:
            say(f"    and {kinds[kind] - _SHOWN:,} more of that kind in {found['where']}; --json names them all", "red")
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=False)
    for name, count in report["checked"].items():
        table.add_row(f"{count:,}", name)
    out.print(table)
    for place in report["unfinished"]:
        say(f"Unfinished: {place}", "yellow")
    for why in report["skipped"]:
        say(f"Not looked at: {why}", "dim")
    differences = len(report["differences"])
    if differences:
        say(f"{differences:,} difference{'' if differences == 1 else 's'} in {report['run']}", "bold red")
    else:
        say(f"Nothing differs in {report['run']}.", "bold green")


def _sentence(found: Mapping[str, Any]) -> str:
    place = " ".join(str(found[part]) for part in ("where", "row", "column") if found[part])
    values = ""
    if found["stored"] is not None or found["found"] is not None:
        values = f" (stored {_value(found['stored'])}, found {_value(found['found'])})"
    return f"{safe(place)}: {safe(found['what'])}{values}"


def _value(value: Any) -> str:
    return "nothing" if value is None else safe(repr(value) if isinstance(value, float) else value, 80)
