"""``grpo-rounds rescore``: what another reward, estimator or update would have made of a run's stored rollouts."""

from rich.console import Console
from rich.markup import escape

from flows.branch import Wish, label, make_branch, plan_branch
from tasks.branch_report import REPORT_PAGE, Report, told, told_transitions
from tasks.rescore import Change
from tasks.run import open_run
from tasks.tracking import Tracker

_SHOWN = ("kl", "clip_ratio", "entropy", "ratio_max", "ratio_ess", "importance_ess")


def rescore_session(run_dir: str, wish: Wish, as_json: bool, out: Console) -> None:
    """Make a branch of a run and say what changed, a round at a time."""
    from flows.cli import echo_json, err

    plan = plan_branch(run_dir, wish)
    report = make_branch(plan, (lambda change: None) if as_json else (lambda change: _print(change, out)))
    # A branch without policies has no curve of its own; `grpo-rounds track` records it, too.
    if wish.retrain:
        tracker = Tracker(open_run(plan.place))
        tracker.set_status("FINISHED")
        if problem := tracker.sync():
            err.print(escape(problem), soft_wrap=True)
    if as_json:
        told_all = {"run": plan.parent.uri, "out": plan.place, "reward": label(plan.config.reward)}
        echo_json(told_all | report.as_dict())
        return
    _print_end(report, out)
    out.print(f"Branch: {escape(plan.place)}", soft_wrap=True)
    out.print(f"Report: {escape(plan.place)}/{REPORT_PAGE}", soft_wrap=True)


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
