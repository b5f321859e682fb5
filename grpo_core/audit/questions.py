"""The house's own questions to a run: by round, one rollout with all that is known of it, a source row, a step."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.audit.choose import Chosen
from grpo_core.audit.connection import Audit
from grpo_core.audit.files import beside, unscored_rollouts
from grpo_core.errors import UserError

Row = dict[str, Any]


def by_round(audit: Audit) -> list[Row]:
    """A row a round: rollouts, verdicts, mean reward, share of groups without variance, rollouts in the loss."""
    found: dict[int, Row] = {}
    unscored = unscored_rollouts(audit.files)
    if unscored.tables["rollouts"]:
        with Audit(audit.store, files=unscored) as other:
            for row in other.ask("SELECT round, count(*) AS n FROM rollouts GROUP BY round"):
                found[row["round"]] = _empty(row["round"]) | {"rollouts": row["n"], "verdicts": {"unscored": row["n"]}}
    counts = audit.ask(
        "SELECT round, verdict, count(*) AS n, sum(reward) AS total, count(reward) AS valid FROM rewards "
        "GROUP BY round, verdict ORDER BY round, verdict"
    )
    sums: dict[int, tuple[float, int]] = {}
    for row in counts:
        of_round = found.setdefault(row["round"], _empty(row["round"]))
        of_round["rollouts"] += row["n"]
        of_round["verdicts"][row["verdict"]] = row["n"]
        total, valid = sums.get(row["round"], (0.0, 0))
        sums[row["round"]] = (total + (row["total"] or 0.0), valid + row["valid"])
    for number, (total, valid) in sums.items():
        found[number]["reward_mean"] = total / valid if valid else None
    shares = audit.ask(
        "SELECT round, avg(zero::INT) AS zero_variance_share, sum(inside)::BIGINT AS in_loss FROM (SELECT round, "
        "bool_and(zero_variance) AS zero, count(*) FILTER (WHERE in_loss) AS inside FROM advantages "
        "GROUP BY round, prompt_id) GROUP BY round"
    )
    for row in shares:
        if row["round"] in found:
            found[row["round"]] |= row
    return [found[number] for number in sorted(found)]


def _empty(number: int) -> Row:
    return {
        "round": number, "rollouts": 0, "verdicts": {}, "reward_mean": None, "zero_variance_share": None,
        "in_loss": None,
    }  # fmt: skip


def details(audit: Audit, chosen: Chosen) -> list[Row]:
    """Rows of the view ``audit`` for these rollouts, in their order; only their own shards are read."""
    sql, given = "SELECT * FROM audit WHERE rollout_id IN (SELECT unnest($ids))", {"ids": chosen.ids}
    with Audit(audit.store, files=beside(audit.files, chosen.files)) as near:
        by_id = {row["rollout_id"]: row for row in near.ask(sql, given)}
    if len(by_id) < len(set(chosen.ids)):  # in a harmed run they may lie in other shards
        by_id = {row["rollout_id"]: row for row in audit.ask(sql, given)}
    return [by_id[name] for name in chosen.ids if name in by_id]


def by_prompt(audit: Audit, prompt_ids: Sequence[str]) -> list[Row]:
    """How these prompts fared: a row each, the least solved first."""
    return audit.ask(
        "SELECT prompt_id, count(DISTINCT round) AS rounds, count(*) AS rollouts, "
        "avg((verdict = 'ok')::INT) FILTER (WHERE verdict IN ('ok', 'wrong', 'unparsable')) AS solved, "
        "avg(reward) AS reward_mean FROM rewards WHERE prompt_id IN (SELECT unnest($ids)) GROUP BY prompt_id "
        "ORDER BY solved, prompt_id",
        {"ids": list(prompt_ids)},
    )


def rollout(audit: Audit, rollout_id: str) -> Row:
    """All that the run knows of one rollout.

    Returns:
        The row of the view ``audit``, and ``sampling`` (how it was generated), ``advantage_row``, ``group`` (its
        siblings), ``labels`` (its own and its prompt's), and ``steps``: the optimiser steps that it moved, with its
        share of each one's gradient.
    """
    given = {"id": rollout_id}
    found, *_ = audit.ask("SELECT * FROM audit WHERE rollout_id = $id", given)
    sampling, *_ = audit.ask(
        "SELECT seed, temperature, top_p, top_k, max_new_tokens, policy_digest, engine, engine_version, "
        "list_avg(logprobs) AS logprob_mean FROM rollouts WHERE rollout_id = $id",
        given,
    )
    advantages = audit.ask("SELECT * FROM advantages WHERE rollout_id = $id", given)
    group = audit.ask(
        "SELECT r.rollout_id, r.sample_index, w.verdict, w.extracted, w.reward, a.advantage, a.in_loss FROM rollouts r "
        "LEFT JOIN rewards w ON w.rollout_id = r.rollout_id LEFT JOIN advantages a ON a.rollout_id = r.rollout_id "
        "WHERE r.prompt_id = $prompt AND r.round = $round ORDER BY r.sample_index",
        {"prompt": found["prompt_id"], "round": found["round"]},
    )
    return found | {
        "sampling": sampling,
        "advantage_row": advantages[0] if advantages else None,
        "group": group,
        "labels": _labels(audit, found),
        "steps": audit.ask("SELECT * FROM steps WHERE rollout_id = $id ORDER BY optimizer_step", given),
        "steps_known": bool(audit.files.tables["steps"]),
    }


def _labels(audit: Audit, found: Mapping[str, Any]) -> list[Row]:
    """Labels of a rollout, and those of its prompt that are given to no rollout."""
    return audit.ask(
        "SELECT * FROM labels WHERE rollout_id = $id OR (rollout_id IS NULL AND prompt_id = $prompt)",
        {"id": found["rollout_id"], "prompt": found["prompt_id"]},
    )


def step(audit: Audit, round_number: int, number: int) -> list[Row]:
    """The rollouts that one optimiser step was made of, the greatest share of its gradient first.

    Raises:
        UserError: the round has kept no steps, or none of this number.
    """
    if not audit.files.tables["steps"]:
        raise UserError(
            f"--step: round {round_number} of '{audit.store.uri}' has no steps.parquet; only updates that keep one "
            "tell which rollouts moved which step."
        )
    rows = audit.ask(
        "SELECT s.*, w.verdict, w.reward, a.advantage FROM steps s LEFT JOIN rewards w ON w.rollout_id = s.rollout_id "
        "LEFT JOIN advantages a ON a.rollout_id = s.rollout_id WHERE s.round = $round AND s.optimizer_step = $step "
        "ORDER BY s.gradient_share DESC, s.rollout_id",
        {"round": round_number, "step": number},
    )
    if not rows:
        (last,) = audit.ask("SELECT max(optimizer_step) AS n FROM steps WHERE round = $round", {"round": round_number})
        raise UserError(f"--step: round {round_number} has steps 1 to {last['n']}; {number} is none of them.")
    return rows
