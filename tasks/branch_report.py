"""The report of a branch: what it changed against its parent, as plain values and as a page of Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tasks.rescore import Change

REPORT_JSON, REPORT_PAGE = "report.json", "report.md"

# Of an update's metrics, those that the page shows; report.json has all.
_SHOWN = (
    *("loss", "kl", "kl_old", "clip_ratio", "entropy", "grad_norm", "ratio_mean", "ratio_max", "ratio_ess"),
    *("sampler_logprob_drift", "importance_mean", "importance_ess", "importance_outside"),
)

Pairs = Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a branch changed. Holds no wall-clock figure and no path: equal branches have equal reports."""

    name: str
    parent_id: str
    differs: Mapping[str, Any]  # config key -> value in the parent and in the branch
    rounds: Sequence[Change]
    evaluation: Pairs | None  # held-out metrics of the last round's policies; None: not asked for
    notes: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    def page(self) -> str:
        """As Markdown."""
        lines = [f"# Branch {self.name}", "", f"Of run `{self.parent_id}`.", ""]
        lines += _table(
            ("key", "in the run", "in the branch"), [(k, old, new) for k, (old, new) in self.differs.items()]
        )
        lines += [f"- {note}" for note in self.notes] + ([""] if self.notes else [])
        lines += ["## Rewards", ""]
        lines += _table(
            ("round", "changed", "of", "mean before", "mean after", "verdicts"),
            [
                (c.round, c.changed, c.rollouts, c.reward_mean_before, c.reward_mean_after, told_transitions(c))
                for c in self.rounds
            ],
        )
        lines += ["## Advantages", ""]
        lines += _table(
            ("round", "sign changed", "correlation", "live before", "live after", "became live", "became dead"),
            [(c.round, *asdict(c.advantages).values()) for c in self.rounds if c.advantages is not None],
        )
        for change in self.rounds:
            if change.update is not None:
                lines += [f"## Update of round {change.round}", ""]
                lines += _table(("", "run", "branch"), _update_rows(change))
        if self.evaluation is not None:
            lines += ["## Held-out prompts", ""]
            lines += _table(("", "run", "branch"), [(name, *pair) for name, pair in self.evaluation.items()])
        return "\n".join(lines)


def told_transitions(change: Change) -> str:
    """The changed verdicts of a round in words."""
    return ", ".join(f"{count} {move}" for move, count in change.transitions.items()) or "no verdict changed"


def told(value: object) -> str:
    """A value in a table: four digits, a dash for what was not measured."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _update_rows(change: Change) -> list[tuple[object, ...]]:
    update = change.update
    assert update is not None
    digests = [None if digest is None else digest[:12] for digest in (update.policy_before, update.policy_after)]
    shown = [(name, *update.metrics[name]) for name in _SHOWN if name in update.metrics]
    return [("policy", *digests), ("off-policy", "no", "yes" if update.off_policy else "no"), *shown]


def _table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return ["nothing to compare", ""]
    lines = [headings, ["---"] * len(headings), *([told(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]
