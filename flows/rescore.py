"""``grpo-rounds rescore``: what another reward, estimator or update would have made of a run's stored rollouts."""

from collections.abc import Callable, Sequence
from typing import Any

from prefect import flow
from rich.console import Console
from rich.markup import escape

from flows.branch import Plan, Wish, label, make_branch, plan_branch
from flows.places import Place
from tasks.branch_report import REPORT_PAGE, Report, told, told_transitions
from tasks.rescore import Change
from tasks.run import open_run
from tasks.tracking import Tracker

_SHOWN = ("kl", "clip_ratio", "entropy", "ratio_max", "ratio_ess", "importance_ess")


@flow(name="rescore")
def rescore(
    run_dir: Place,
    reward: str | None = None,
    advantage: str | None = None,
    overrides: Sequence[str] = (),
    retrain: bool = False,
    evaluate: bool = False,
    rounds: str | None = None,
    out_dir: Place | None = None,
) -> dict[str, Any]:
    """Make a branch of a run from its stored rollouts, and return what changed.

    Args:
        reward: another reward's name; by default the run's own, as its code is now.
        advantage: another estimator's name.
        overrides: ``reward.key=value`` and the like, each changes one key.
        retrain: make policies, too.
        evaluate: measure the last of these.
        rounds: ``1-3`` or one number; by default all.
        out_dir: the branch's folder; by default RUN/branches/NAME.

    Raises:
        UserError: no such rollouts, a key or name that is none, or a folder that is a run itself.
    """
    wish = Wish(reward, advantage, tuple(overrides), retrain, evaluate, rounds, out=out_dir)
    plan = plan_branch(run_dir, wish)
    report, problem = _make(plan, lambda _: None)
    return _as_json(plan, report) | {"mlflow": problem or "recorded"}


def rescore_session(run_dir: str, wish: Wish, as_json: bool, out: Console) -> None:
    """Make a branch of a run and say what changed, a round at a time."""
    from flows.cli import echo_json, err

    plan = plan_branch(run_dir, wish)
    report, problem = _make(plan, (lambda change: None) if as_json else (lambda change: _print(change, out)))
    if problem:
        err.print(escape(problem), soft_wrap=True)
    if as_json:
        echo_json(_as_json(plan, report))
        return
    _print_end(report, out)
    out.print(f"Branch: {escape(plan.place)}", soft_wrap=True)
    out.print(f"Report: {escape(plan.place)}/{REPORT_PAGE}", soft_wrap=True)


def _make(plan: Plan, on_round: Callable[[Change], None]) -> tuple[Report, str | None]:
    """The branch and its report, and what is wrong with its record in MLflow."""
    report = make_branch(plan, on_round)
    if not plan.branch.policies:  # it has no curve of its own; `grpo-rounds track` records it, too
        return report, None
    tracker = Tracker(open_run(plan.place))
    tracker.set_status("FINISHED")
    return report, tracker.sync()


def _as_json(plan: Plan, report: Report) -> dict[str, Any]:
    told_first = {"run": plan.parent.uri, "out": plan.place, "reward": label(plan.config.reward)}
    return told_first | report.as_dict()


def _print(change: Change, out: Console) -> None:
    before, after = (
        "none" if mean is None else f"{mean:.3f}" for mean in (change.reward_mean_before, change.reward_mean_after)
    )
    out.print(
        f"round {change.round:>4}  {change.changed} of {change.rollouts} changed  reward {before} -> {after}  "
        f"{told_transitions(change)}",
        soft_wrap=True,
    )
    for identity in change.first_changed:
        out.print(f"            {escape(identity)}", soft_wrap=True)
    if change.changed > len(change.first_changed):
        out.print(f"            and {change.changed - len(change.first_changed)} more")
    if (found := change.advantages) is not None:
        out.print(
            f"            advantages: {found.sign_changed:.0%} changed sign, correlation {told(found.correlation)}, "
            f"{found.became_live} groups became live, {found.became_dead} dead",
            soft_wrap=True,
        )
    if (update := change.update) is not None:
        same = "the same policy" if update.policy_before == update.policy_after else "another policy"
        pairs = [
            f"{name} {told(update.metrics[name][0])} -> {told(update.metrics[name][1])}"
            for name in _SHOWN
            if name in update.metrics
        ]
        where = ", off-policy" if update.off_policy else ""
        out.print(f"            update: {same}{where}, {', '.join(pairs)}", soft_wrap=True)


def _print_end(report: Report, out: Console) -> None:
    for name, (before, after) in (report.evaluation or {}).items():
        out.print(f"held-out    {name} {told(before)} -> {told(after)}", soft_wrap=True)
    for note in report.notes:
        out.print(escape(note), soft_wrap=True)
