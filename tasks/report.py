"""A round's report: one HTML page for people, made of the stored tables alone, the same bytes every time."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from grpo_core.fingerprint import digest_json
from grpo_core.labels.corrections import BY_A_PERSON, corrections
from grpo_core.report.page import render
from grpo_core.report.pick import Order, best_and_worst, covering_groups, disagreements, hash_order
from grpo_core.report.rows import Row
from grpo_core.schemas import REWARDS
from tasks.round_labels import FOLDER, scoring_labels, stored_labels
from tasks.round_rows import TABLES, read_columns, read_prompts, read_rows
from tasks.run import Run, round_folder

VERSION = 1  # raised when the same tables would give another page
_LOOK_BACK = 30  # rounds, in search of the last one with the same prompt
_GROUPS, _ROLLOUTS, _LABELS, _CHANGES = 40, 10, 100, 20  # so many are shown


def report_digest(run: Run, round_number: int) -> str:
    """The identity of all that the page is made of."""
    parts = [round_folder(round_number, name) for name in (*TABLES, FOLDER)]
    parts += ["prompts", *(round_folder(number, "rewards") for number in _earlier(round_number))]
    manifests = [run.artifact(part).manifest() for part in parts]
    digests = [None if manifest is None else [manifest.digest, dict(manifest.metrics)] for manifest in manifests]
    return digest_json([VERSION, run.config.name, run.uri, run.config.seed, digests])


def round_report(run: Run, round_number: int) -> bytes:
    """The page for a round whose rollouts, rewards and advantages are finished."""
    rows = read_rows(run, round_number)
    order = hash_order(run.config.seed, "report", round_number)
    by_prompt: dict[str, list[Row]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt_id, []).append(row)
    labels = stored_labels(run, round_number)
    columns = ([row.prompt_id for row in rows], [row.verdict for row in rows], [row.reward for row in rows])
    shown = covering_groups(*columns, order)
    page = {
        "run_name": run.config.name,
        "round": round_number,
        "folder": f"{run.uri}/{round_folder(round_number)}",
        "audit": f"grpo-rounds audit {shlex.quote(run.uri)}",
        "tiles": _tiles(rows, by_prompt),
        "prompts": read_prompts(run, round_number),
        "notes": _notes(run, round_number),
        "labels": _first(sorted(labels, key=lambda label: (label.at, label.assessment_id), reverse=True), _LABELS),
        "changed": _first(_changed_by_people(run, round_number, rows), _ROLLOUTS),
        "groups": _first([_group(prompt_id, by_prompt[prompt_id], order) for prompt_id in shown], _GROUPS),
        "parts": _parts(rows, order),
        "changes": _first(_changes(run, round_number, by_prompt), _CHANGES),
    }
    return render(page)


def _earlier(round_number: int) -> range:
    return range(round_number - 1, max(0, round_number - 1 - _LOOK_BACK), -1)


def _first(rows: Sequence[Any], count: int) -> dict[str, Any]:
    return {"rows": rows[:count], "more": max(0, len(rows) - count)}


def _tiles(rows: Sequence[Row], by_prompt: dict[str, list[Row]]) -> list[tuple[str, str]]:
    rewards = [row.reward for row in rows if row.reward is not None]
    verdicts = Counter(row.verdict for row in rows)
    flat = sum(len({row.reward for row in group if row.reward is not None}) < 2 for group in by_prompt.values())
    return [
        ("rollouts", str(len(rows))),
        ("groups", str(len(by_prompt))),
        ("mean reward", f"{sum(rewards) / len(rewards):.3f}" if rewards else "none"),
        *((verdict, f"{count} ({count / len(rows):.0%})") for verdict, count in sorted(verdicts.items())),
        ("cut off", str(sum(row.finish_reason == "length" for row in rows))),
        ("groups of equal rewards", str(flat)),
    ]


def _notes(run: Run, round_number: int) -> list[str]:
    manifest = run.artifact(round_folder(round_number, FOLDER)).manifest()
    if manifest is not None and "mlflow_unreachable" in manifest.metrics:
        return ["MLflow could not be asked when this round began: these are the labels known before."]
    return []


def _changed_by_people(run: Run, round_number: int, rows: Iterable[Row]) -> list[Row]:
    said = corrections(scoring_labels(run, round_number))
    return [
        row
        for row in rows
        if BY_A_PERSON in row.detail
        and (row.prompt_id in said.golds or said.verdict_on(row.prompt_id, row.extracted, row.text) is not None)
    ]


def _group(prompt_id: str, rows: Sequence[Row], order: Order) -> dict[str, Any]:
    best, worst = best_and_worst(rows, order)
    return {"prompt_id": prompt_id, "best": best, "worst": worst, **_standing(rows)}


def _standing(rows: Sequence[Row]) -> dict[str, Any]:
    return _figures([row.verdict for row in rows], [row.reward for row in rows])


def _figures(verdicts: Sequence[str], rewards: Sequence[float | None]) -> dict[str, Any]:
    valid = [reward for reward in rewards if reward is not None]
    mean = sum(valid) / len(valid) if valid else None
    return {"mean": mean, "size": len(verdicts), "right": sum(verdict == "ok" for verdict in verdicts)}


def _parts(rows: Sequence[Row], order: Order) -> list[dict[str, Any]]:
    """The sections that are a list of rollouts; each in the order of a hash, so that it is spread over the round."""
    mixed = sorted(rows, key=lambda row: order(row.rollout_id))
    torn = disagreements(rows)
    says = {row.rollout_id: ", ".join(f"{name} {value:+.2f}" for name, value in said.items()) for row, said in torn}
    cut_off = [row for row in mixed if row.finish_reason == "length"]
    unreadable = [row for row in mixed if row.verdict == "unparsable"]
    failed = [row for row in mixed if row.verdict in ("timeout", "error", "missing")]
    return [
        _part("cut", "Cut off", "Generation ended at its limit of tokens.", cut_off),
        _part("unparsable", "Unparsable", "No answer that can be read.", unreadable),
        _part(
            "failed", "Failed checks", "The check ran out of time, failed, or never ran: there is no reward.", failed
        ),
        _part(
            "components",
            "Components disagree",
            "One component puts the rollout above its group's mean, another below it; figures from -1 to 1.",
            [row for row, _ in torn],
            says,
        ),
    ]


def _part(
    anchor: str, title: str, about: str, rows: Sequence[Row], says: dict[str, str] | None = None
) -> dict[str, Any]:
    notes = says or {row.rollout_id: "" for row in rows}
    return {"anchor": anchor, "title": title, "about": about, "says": notes, **_first(rows, _ROLLOUTS)}


def _changes(run: Run, round_number: int, by_prompt: dict[str, list[Row]]) -> list[dict[str, Any]]:
    """Each prompt that an earlier round had, with how it stood there and stands now; the greatest move first."""
    found: list[dict[str, Any]] = []
    wanted = set(by_prompt)
    columns = ("prompt_id", "verdict", "extracted", "reward", "rollout_id")
    for number in _earlier(round_number):
        if not wanted or run.artifact(round_folder(number, "rewards")).manifest() is None:
            break
        before: dict[str, list[dict[str, Any]]] = {}
        for row in read_columns(run, number, "rewards", REWARDS, columns).to_pylist():
            before.setdefault(row["prompt_id"], []).append(row)
        for prompt_id in sorted(wanted & before.keys()):
            wanted.remove(prompt_id)
            old, new = before[prompt_id], by_prompt[prompt_id]
            then = _figures([row["verdict"] for row in old], [row["reward"] for row in old])
            found.append(
                {
                    "prompt_id": prompt_id,
                    "round_before": number,
                    "answer_before": _best_answer([(r["reward"], r["extracted"], r["rollout_id"]) for r in old]),
                    "answer": _best_answer([(r.reward, r.extracted, r.rollout_id) for r in new]),
                    **{f"{name}_before": value for name, value in then.items()},
                    **_standing(new),
                }
            )
    moved = [change for change in found if change["mean"] != change["mean_before"]]
    return sorted(moved, key=lambda c: (-abs((c["mean"] or 0.0) - (c["mean_before"] or 0.0)), c["prompt_id"]))


def _best_answer(rows: Sequence[tuple[float | None, str | None, str]]) -> str:
    """The extracted answer of the rollout with the greatest reward, the first among equals."""
    best = min(rows, key=lambda row: (row[0] is None, -(row[0] or 0.0), row[2]))
    return "none" if best[1] is None else best[1]
