"""One question to a run, as the command line's options say it, and its answer as plain values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from grpo_core.audit import questions
from grpo_core.audit.choose import Filter, choose, find_prompt, find_rollout, parse_rounds, parse_verdict
from grpo_core.audit.connection import Audit
from grpo_core.audit.sources import answers, parse_source, rows_of
from grpo_core.errors import UserError
from grpo_core.storage import Store


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, in the words of the options of the same names; None: not asked.

    ``rollout``, ``step`` and ``sql`` each stand alone; the others together must all be true of a rollout.
    """

    prompt: str | None = None
    verdict: str | None = None
    rounds: str | None = None
    source: str | None = None
    worst: int | None = None
    best: int | None = None
    rollout: str | None = None
    step: str | None = None
    sql: str | None = None
    limit: int | None = None  # rows at most; None: all


def ask(store: Store, question: Question) -> dict[str, Any]:
    """The answer: ``kind`` (rounds, rollouts, rollout, step, source or sql), what it is about, ``rows``, and ``total``.

    ``notes`` says what of the run could not be looked at.

    Raises:
        UserError: the folder holds no run, or the question can't be answered; the sentence names the option.
    """
    _refuse_mixed(question)
    verdict, rounds = parse_verdict(question.verdict), parse_rounds(question.rounds, "--round")
    round_number, step = _parse_step(question.step) if question.step is not None else (None, None)
    if question.rollout is not None:
        first, slash, _ = question.rollout.partition("/")
        round_number = int(first) if slash and first.isdigit() else None
    if round_number is not None:
        rounds = range(round_number, round_number + 1)
    with Audit(store, rounds) as audit:
        if rounds is not None and not any(number in rounds for number in audit.files.rounds):
            there = audit.files.rounds
            span = f"rounds {there[0]} to {there[-1]}" if there else "no rounds yet"
            raise UserError(f"'{store.uri}' has {span}; {_range(rounds)} lies outside.")
        if question.sql is not None:
            found = _sql(audit, question.sql, question.limit)
        elif question.rollout is not None:
            found = {"kind": "rollout", **questions.rollout(audit, find_rollout(audit, question.rollout))}
        elif step is not None and round_number is not None:
            rows = questions.step(audit, round_number, step)
            found = {"kind": "step", "round": round_number, "step": step, **_cut(rows, question.limit)}
        elif (verdict, question.prompt, question.source, question.worst, question.best) == (None,) * 5:
            found = {"kind": "rounds", **_cut(questions.by_round(audit), None)}
        else:
            found = _rollouts(audit, question, verdict)
        plain: dict[str, Any] = as_plain({"run": store.uri, **found, "notes": audit.notes})
        return plain


def _rollouts(audit: Audit, question: Question, verdict: str | None) -> dict[str, Any]:
    about: dict[str, Any] = {"kind": "rollouts"}
    prompt_ids: list[str] | None = None
    if question.source is not None:
        source, row = parse_source(audit, question.source)
        fates = rows_of(audit, source, row)
        prompt_ids = [fate["prompt_id"] for fate in fates if fate["prompt_id"] is not None]
        about |= {"source": source, "source_row": row, "fates": fates}
        if row is not None:
            about["answers"] = answers(audit, prompt_ids)
        elif (question.prompt, verdict, question.worst, question.best) == (None,) * 4:
            return about | {"kind": "source", **_cut(questions.by_prompt(audit, prompt_ids), question.limit)}
    if question.prompt is not None:
        prompt = find_prompt(audit, question.prompt)
        about["prompt"] = prompt
        if prompt["held_out"]:
            about["answers"] = answers(audit, [prompt["prompt_id"]])
        both = prompt_ids is None or prompt["prompt_id"] in prompt_ids
        prompt_ids = [prompt["prompt_id"]] if both else []
    order = "worst" if question.worst is not None else "best" if question.best is not None else None
    chosen = choose(audit, Filter(prompt_ids, verdict), order, question.worst or question.best or question.limit)
    return about | {"total": chosen.total, "rows": questions.details(audit, chosen)}


def _sql(audit: Audit, sql: str, limit: int | None) -> dict[str, Any]:
    columns, rows = audit.ask_sql(sql, limit)
    names = [name if name not in columns[:n] else f"{name}_{n}" for n, name in enumerate(columns)]
    shown = rows if limit is None else rows[:limit]
    return {
        "kind": "sql",
        "columns": names,
        "rows": [dict(zip(names, row, strict=True)) for row in shown],
        "more": len(rows) > len(shown),
    }


def _cut(rows: list[dict[str, Any]], limit: int | None) -> dict[str, Any]:
    return {"total": len(rows), "rows": rows[:limit]}


def _refuse_mixed(question: Question) -> None:
    alone = [name for name in ("rollout", "step", "sql") if getattr(question, name) is not None]
    filters = ("prompt", "verdict", "rounds", "source", "worst", "best")
    others = [name.removesuffix("s") for name in filters if getattr(question, name) is not None]
    if len(alone) > 1 or (alone and others):
        raise UserError(f"--{alone[0]} stands alone; leave out --{(alone[1:] + others)[0]}.")
    if question.worst is not None and question.best is not None:
        raise UserError("--worst and --best can't be asked at once; leave one out.")


def _parse_step(text: str) -> tuple[int, int]:
    number, _, step = text.partition(":")
    if not (number.isdecimal() and step.isdecimal()):
        raise UserError(f"--step {text!r} is no optimiser step; write it as ROUND:STEP, such as 7:3.")
    return int(number), int(step)


def _range(rounds: range) -> str:
    first, last = rounds[0], rounds[-1]
    return f"round {first}" if first == last else f"{first}-{last}"


def as_plain(value: Any) -> Any:
    """The value in JSON's types: a number that is none becomes null, what JSON doesn't know becomes text."""
    if isinstance(value, Mapping):
        return {str(key): as_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return float(value)
    if value is None or isinstance(value, str | int):
        return value
    return str(value)
