"""The answers of ``grpo-rounds audit`` as tables for a terminal, each with the command that goes deeper."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

_VERDICTS = ("ok", "wrong", "unparsable", "timeout", "error", "missing", "unscored")
_COLOURS = {"ok": "green", "wrong": "red", "unparsable": "yellow"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def print_answer(answer: Row, run: str, out: Console) -> None:
    """Draw what ``grpo_core.audit.ask.ask`` found."""
    command = f"grpo-rounds audit {shlex.quote(run)}"
    draw = {
        "rounds": _rounds, "rollouts": _rollouts, "rollout": _rollout, "step": _step, "source": _source, "sql": _sql
    }  # fmt: skip
    draw[answer["kind"]](answer, command, out)
    for note in answer["notes"]:
        _say(note, out, "yellow")


def safe(value: object, most: int = 0) -> str:
    """A value as text that can't steer the terminal: a policy may write escape codes. Cut to ``most`` characters."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    if most:
        text = " ".join(text.split())
        text = text if len(text) <= most else text[: most - 1] + "…"
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _say(text: str, out: Console, style: str = "") -> None:
    out.print(Text(text, style=style), soft_wrap=True)


def _deeper(command: str, out: Console) -> None:
    _say(f"Deeper: {command}", out, "dim")


def _table(out: Console, headings: Iterable[str], rows: Iterable[Sequence[object]], cut: int = 40) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading in ("rollout", "prompt"))
    for row in rows:
        table.add_row(*(value if isinstance(value, Text) else Text(safe(value, cut)) for value in row))
    out.print(table)


def _verdict(value: str | None) -> Text:
    return Text(value or "-", style=_COLOURS.get(value or "", "magenta" if value else "dim"))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _rounds(answer: Row, command: str, out: Console) -> None:
    rows = answer["rows"]
    if not rows:
        _say("The run has no finished rollouts yet.", out)
        return
    present = [name for name in _VERDICTS if any(name in row["verdicts"] for row in rows)]
    _table(
        out,
        ["round", "rollouts", *present, "reward", "zero var.", "in loss"],
        (
            [
                row["round"], row["rollouts"], *(row["verdicts"].get(name, 0) for name in present),
                row["reward_mean"], _share(row["zero_variance_share"]), row["in_loss"],
            ]
            for row in rows
        ),
    )  # fmt: skip
    _deeper(f"{command} --round {rows[-1]['round']} --worst 20, or prove it all: {_verify(command)}", out)


def _verify(command: str) -> str:
    return command.replace("audit ", "audit verify ", 1)


def _rollouts(answer: Row, command: str, out: Console) -> None:
    if prompt := answer.get("prompt"):
        _say(f"Prompt {prompt['prompt_id']}, row {prompt['source_row']} of {prompt['source']}:", out, "bold")
        _say(safe(prompt["prompt"]), out)
        _say(f"Gold: {safe(prompt['gold'])}", out)
    if answer.get("source_row") is not None:
        _fates(answer["fates"], out)
    if answer.get("answers"):
        _say("Answers to a held-out prompt, by round:", out, "bold")
        _table(
            out,
            ["round", "mode", "verdict", "reward", "answer", "gold"],
            (
                [a["round"], f"{a['mode']} {a['sample_index']}", _verdict(a["verdict"]), a["reward"], a["extracted"],
                 a["gold"]]
                for a in answer["answers"]
            ),
        )  # fmt: skip
    if not answer["rows"]:
        if not answer.get("answers"):
            _say("No rollouts.", out)
        return
    _table(
        out,
        ["rollout", "verdict", "reward", "adv.", "loss", "tokens", "answer", "gold"],
        (
            [row["rollout_id"], _verdict(row["verdict"]), row["reward"], row["advantage"], _yes(row["in_loss"]),
             row["tokens"], Text(safe(row["extracted"], 20)), Text(safe(row["gold"], 20))]
            for row in answer["rows"]
        ),
    )  # fmt: skip
    _count(answer, out)
    _deeper(f"{command} --rollout {answer['rows'][0]['rollout_id']}", out)


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _count(answer: Row, out: Console) -> None:
    shown, total = len(answer["rows"]), answer["total"]
    _say(f"{shown} of {total:,}" + ("" if shown == total else "; --limit 0 for all"), out, "dim")


def _fates(fates: Sequence[Row], out: Console) -> None:
    for fate in fates:
        why = f": {fate['reason']} ({safe(fate['detail'])})" if fate["reason"] else f", prompt {fate['prompt_id']}"
        _say(f"Row {fate['source_row']} of {fate['source']}: {fate['fate']}{why}", out, "bold")
        _say(safe(fate["prompt"]), out)
        _say(f"Gold: {safe(fate['gold'])}", out)


def _source(answer: Row, command: str, out: Console) -> None:
    counts = Counter(
        fate["fate"] + (f" ({fate['reason']})" if fate["reason"] else "") for fate in answer["fates"]
    )  # fmt: skip
    _say(f"{answer['source']}: " + ", ".join(f"{n:,} {fate}" for fate, n in counts.most_common()), out, "bold")
    row_of = {fate["prompt_id"]: fate for fate in answer["fates"] if fate["prompt_id"]}
    _table(
        out,
        ["row", "prompt", "rounds", "rollouts", "solved", "reward", "question"],
        (
            [row_of[row["prompt_id"]]["source_row"], row["prompt_id"], row["rounds"], row["rollouts"],
             _share(row["solved"]), row["reward_mean"], row_of[row["prompt_id"]]["prompt"]]
            for row in answer["rows"]
        ),
    )  # fmt: skip
    _count(answer, out)
    if answer["rows"]:
        row = row_of[answer["rows"][0]["prompt_id"]]["source_row"]
        _deeper(f"{command} --source {shlex.quote(answer['source'])}:{row}", out)


def _rollout(answer: Row, command: str, out: Console) -> None:
    _say(f"Rollout {answer['rollout_id']}", out, "bold")
    _say(f"Row {answer['source_row']} of {answer['source']}, prompt {answer['prompt_id']}", out)
    _say("Prompt", out, "bold")
    _say(safe(answer["prompt"]), out)
    _say("Text", out, "bold")
    _say(safe(answer["text"]), out)
    sampling, stats = answer["sampling"], answer["advantage_row"]
    facts: list[tuple[str, object]] = [
        ("gold", answer["gold"]),
        ("extracted", answer["extracted"]),
        ("verdict", answer["verdict"] or "not scored yet"),
        ("reward", answer["reward"]),
        ("components", ", ".join(f"{k} {safe(v) or 'masked'}" for k, v in (answer["components"] or {}).items())),
        ("detail", answer["detail"]),
        ("advantage", answer["advantage"]),
        ("in the loss", _yes(answer["in_loss"])),
    ]
    if stats:
        facts.append(
            (
                "group",
                f"mean {safe(stats['group_mean'])}, std {safe(stats['group_std'])}, {stats['group_valid']} of "
                f"{stats['group_size']} with a reward" + (", no variance" if stats["zero_variance"] else ""),
            )
        )
        facts += [(name, stats[name]) for name in ("rank", "tier") if stats.get(name) is not None]
    facts += [
        ("end", f"{answer['finish_reason']} after {answer['tokens']} tokens of {sampling['max_new_tokens']}"),
        ("mean logprob", sampling["logprob_mean"]),
        ("sampled by", f"{sampling['engine']} {sampling['engine_version']}, policy {sampling['policy_digest'][:12]}…, "
         f"temperature {safe(sampling['temperature'])}, seed {sampling['seed']}"),
    ]  # fmt: skip
    _table(out, ["", ""], ((Text(name, style="dim"), Text(safe(value))) for name, value in facts))
    for label in answer["labels"]:
        whose = "label" if label.get("rollout_id") else "label of the prompt"
        told = ", ".join(f"{key} {safe(value)}" for key, value in label.items() if value is not None and key in _LABEL)
        _say(f"{whose}: {told}", out, "cyan")
    _steps(answer, command, out)
    _say(f"Its group, round {answer['round']}", out, "bold")
    _table(
        out,
        ["rollout", "verdict", "reward", "adv.", "loss", "answer"],
        (
            [row["rollout_id"], _verdict(row["verdict"]), row["reward"], row["advantage"], _yes(row["in_loss"]),
             row["extracted"]]
            for row in answer["group"]
        ),
    )  # fmt: skip
    _deeper(f"{command} --prompt {answer['prompt_id']}", out)


_LABEL = ("kind", "value", "who", "at", "rationale")


def _steps(answer: Row, command: str, out: Console) -> None:
    if not answer["steps"]:
        why = "it was not in the loss" if answer["steps_known"] else "this round kept no steps.parquet"
        _say(f"Optimiser steps that it moved: none known, {why}.", out)
        return
    _say("Optimiser steps that it moved", out, "bold")
    _table(
        out,
        ["step", "share of its gradient", "tokens", "clipped"],
        (
            [f"{answer['round']}:{row['optimizer_step']}", f"{row['gradient_share']:.2%}", row.get("tokens"),
             row.get("clipped_tokens")]
            for row in answer["steps"]
        ),
    )  # fmt: skip
    _deeper(f"{command} --step {answer['round']}:{answer['steps'][0]['optimizer_step']}", out)


def _step(answer: Row, command: str, out: Console) -> None:
    _say(f"Optimiser step {answer['step']} of round {answer['round']}, by share of its gradient", out, "bold")
    _table(
        out,
        ["rollout", "share", "verdict", "reward", "adv.", "tokens", "clipped"],
        (
            [row["rollout_id"], f"{row['gradient_share']:.2%}", _verdict(row["verdict"]), row["reward"],
             row["advantage"], row.get("tokens"), row.get("clipped_tokens")]
            for row in answer["rows"]
        ),
    )  # fmt: skip
    _count(answer, out)
    if answer["rows"]:
        _deeper(f"{command} --rollout {answer['rows'][0]['rollout_id']}", out)


def _sql(answer: Row, command: str, out: Console) -> None:
    _table(out, answer["columns"], ([row[name] for name in answer["columns"]] for row in answer["rows"]), cut=60)
    shown = len(answer["rows"])
    _say(f"{shown} row{'' if shown == 1 else 's'}" + ("; --limit 0 for all" if answer["more"] else ""), out, "dim")
