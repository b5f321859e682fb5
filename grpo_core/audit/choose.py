"""Which rollouts a question means: by prompt, verdict, round and source row, the worst or the best first."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.audit.connection import Audit
from grpo_core.errors import UserError
from grpo_core.rewards.verdict import Verdict

NO_REWARDS = "unscored"  # in place of a verdict: rollouts that the run has not scored yet


@dataclass(frozen=True, slots=True)
class Filter:
    """What rollouts must have; None: anything. Rounds are chosen when the run is opened."""

    prompt_ids: Sequence[str] | None = None
    verdict: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Ids of rollouts in order, the first ``limit`` of ``total``, and the files in which they were found."""

    total: int
    ids: list[str]
    files: frozenset[str]


_ORDERS = {
    None: "k.rollout_id",
    # Of equal rewards first the one that the loss pushed hardest.
    "worst": "k.reward ASC NULLS LAST, a.advantage ASC NULLS LAST, k.rollout_id",
    "best": "k.reward DESC NULLS LAST, a.advantage DESC NULLS LAST, k.rollout_id",
}


def parse_rounds(text: str | None, option: str) -> range | None:
    """``7`` or ``3-9`` as a range of rounds. Raises UserError."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise UserError(f"{option} {text!r} is no range; write it as 3-9, or one number.")
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def parse_verdict(text: str | None) -> str | None:
    """A verdict's name. Raises UserError."""
    known = [*(verdict.value for verdict in Verdict), NO_REWARDS]
    if text is not None and text not in known:
        raise UserError(f"--verdict {text!r} is none; it can be {', '.join(known)}.")
    return text


def choose(audit: Audit, wanted: Filter, order: str | None = None, limit: int | None = None) -> Chosen:
    """The rollouts that pass, ``worst`` or ``best`` first or by id; reads no texts and no tokens."""
    # As few tables as will do: each is a look into every shard of the run.
    scored = order is not None or wanted.verdict not in (None, NO_REWARDS)
    tables = "rewards k" if scored else "rollouts k"
    conditions: list[str] = []
    given: dict[str, Any] = {}
    if order is not None:
        tables += " LEFT JOIN advantages a ON a.rollout_id = k.rollout_id"
        conditions.append("k.reward IS NOT NULL")
    if wanted.verdict == NO_REWARDS:
        tables += " LEFT JOIN rewards w ON w.rollout_id = k.rollout_id"
        conditions.append("w.verdict IS NULL")
    elif wanted.verdict is not None:
        conditions.append("k.verdict = $verdict")
        given["verdict"] = wanted.verdict
    if wanted.prompt_ids is not None:
        conditions.append("k.prompt_id IN (SELECT unnest($prompt_ids))")
        given["prompt_ids"] = list(wanted.prompt_ids)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    most = "" if limit is None else f" LIMIT {limit}"
    rows = audit.ask(
        f"SELECT k.rollout_id, k.file, count(*) OVER () AS total FROM {tables}{where} ORDER BY {_ORDERS[order]}{most}",
        given,
    )
    total = rows[0]["total"] if rows else 0
    return Chosen(total, [row["rollout_id"] for row in rows], frozenset(row["file"] for row in rows))


def find_prompt(audit: Audit, given: str) -> dict[str, Any]:
    """The one training or held-out prompt whose id begins so. Raises UserError for none or several."""
    rows = audit.ask(
        "SELECT prompt_id, any_value(prompt) AS prompt, any_value(source) AS source, any_value(source_row) AS "
        "source_row, any_value(gold) AS gold, bool_or(held) AS held_out FROM (SELECT *, false AS held FROM prompts "
        "UNION ALL BY NAME SELECT *, true AS held FROM held_out) WHERE starts_with(prompt_id, $given) "
        "GROUP BY prompt_id ORDER BY prompt_id LIMIT 4",
        {"given": given},
    )
    exact = [row for row in rows if row["prompt_id"] == given]
    return _only(exact or rows, "prompt_id", f"--prompt {given!r}", audit)


def find_rollout(audit: Audit, given: str) -> str:
    """The one rollout whose id begins so. Raises UserError for none or several."""
    rows = audit.ask(
        "SELECT rollout_id FROM rollouts WHERE starts_with(rollout_id, $given) ORDER BY length(rollout_id), rollout_id "
        "LIMIT 4",
        {"given": given},
    )
    exact = [row for row in rows if row["rollout_id"] == given]
    return str(_only(exact or rows, "rollout_id", f"--rollout {given!r}", audit)["rollout_id"])


def _only(rows: Sequence[dict[str, Any]], column: str, asked: str, audit: Audit) -> dict[str, Any]:
    if not rows:
        raise UserError(f"{asked}: '{audit.store.uri}' has none that begins so; list them with --sql or --worst 20.")
    if len(rows) > 1:
        some = ", ".join(str(row[column]) for row in rows[:3])
        raise UserError(f"{asked} stands for several ({some}{', …' if len(rows) > 3 else ''}); give more of it.")
    return rows[0]
