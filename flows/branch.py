"""A branch of a run: other rewards, advantages or updates on its stored rollouts, in a folder of their own.

``plan_branch`` checks everything and writes nothing; ``make_branch`` does the work, goes on where a killed one stands,
and says nothing. The parent's folder is read only, but for ``branches/`` in it.
"""

import json
import posixpath
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from flows.stopping import polite_stop
from grpo_core import interrupt
from grpo_core.advantages.config import READS
from grpo_core.config import RunConfig, apply_overrides, changes, parse_config, to_yaml
from grpo_core.errors import UserError
from grpo_core.models import resolve_device
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import build_reward, needs_reference
from grpo_core.storage import Store
from tasks import compute_advantages, evaluate_policy, initial_policy, score_rewards, update_policy
from tasks.branch import BRANCH, BRANCHES, Branch, read_branch
from tasks.branch_report import REPORT_JSON, REPORT_PAGE, Report
from tasks.pools import pools
from tasks.rescore import Change, compare, metric_pairs, rounds_with
from tasks.retention import apply_retention
from tasks.round_labels import FOLDER
from tasks.run import CONFIG, IDENTITY, Run, give_identity, open_run, round_folder, single_writer
from tasks.stage import execute

FIRST_CHANGED = 20  # changed rollouts that a round names
_LONGEST_NAME = 100
_NAMES_ITSELF = ("name", "rounds")  # keys that every branch has of its own
_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants to be otherwise, as the command line takes it."""

    reward: str | None = None  # name of another reward; None: the run's own
    advantage: str | None = None  # name of another estimator
    overrides: tuple[str, ...] = ()  # section.key=value
    retrain: bool = False
    evaluate: bool = False
    rounds: str | None = None  # "2" or "1-3"; None: all that can be
    name: str | None = None  # of the branch; None: made of the above
    out: str | None = None  # its folder; None: below branches/ in the run


@dataclass(frozen=True, slots=True)
class Plan:
    """A branch that can be made."""

    parent: Run
    config: RunConfig
    place: str
    name: str
    branch: Branch


def plan_branch(run_dir: str, wish: Wish) -> Plan:
    """Check a wish against a run; writes nothing.

    Raises:
        UserError: an estimator, key, reward or round is wrong, or the run has not what the branch needs.
    """
    parent = open_run(run_dir)
    if wish.evaluate and not wish.retrain:
        raise UserError("--evaluate measures the policy of a retrained branch; add --retrain, or leave it out.")
    config = _changed_config(parent, wish)
    # Without another wish the run's own reward, as its code is now, scores anew.
    rewards = wish.reward is not None or _sets(wish, "reward") or not (_other_advantages(wish) or wish.retrain)
    if rewards:
        build_reward(config.reward)
    if wish.retrain:
        resolve_device(config.model)
    borrowed = ["rollouts", *([] if rewards else ["rewards"]), *(["gates"] if wish.retrain else [])]
    numbers = _numbers(parent, wish.rounds, borrowed)
    _require_start(parent, config, numbers[0], rewards=rewards)
    if wish.retrain:
        _require_policy(parent, numbers[0])
    name = wish.name or _default_name(config, wish, rewards)
    if not _NAME.fullmatch(name):
        raise UserError(f"--name {name!r} can't name a folder; use letters, digits, '.', '_' and '-'.")
    place = Store(wish.out or posixpath.join(parent.uri, BRANCHES, name)).uri
    _require_free(parent, place)
    config = config.model_copy(
        update={
            "name": f"{parent.config.name}.{name}",
            "rounds": numbers[-1],
            # Nobody decides on a branch's policies, so each round goes on from the one before.
            "promotion": config.promotion.model_copy(update={"go_back": "never"}),
        }
    )
    branch = Branch(
        parent=parent.uri,
        parent_id=parent.identity,
        first=numbers[0],
        last=numbers[-1],
        rewards=rewards,
        policies=wish.retrain,
        evaluation=wish.evaluate,
        differs={c.key: [c.old, c.new] for c in changes(parent.config, config) if c.key not in _NAMES_ITSELF},
        digests=_digests(parent, config, borrowed, numbers, retrain=wish.retrain),
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    return Plan(parent, config, place, name, branch)


def make_branch(plan: Plan, on_round: Callable[[Change], None] = lambda _: None) -> Report:
    """Make what is missing of a branch, round by round, and its report.

    Args:
        on_round: hears of each round's changes when it stands complete.

    Raises:
        UserError: the parent's files are not as their manifests say, or someone else is writing the branch.
        Stopped: SIGTERM came.
    """
    parent, planned = plan.parent, plan.branch
    _prove(parent, planned.digests)
    store = Store(plan.place)
    with single_writer(plan.place), polite_stop():
        before = read_branch(store)
        store.sweep()
        told = planned if before is None else replace(planned, created=before.created)
        # In this order a kill in between leaves a folder that is taken for no other thing.
        store.write_bytes(CONFIG, to_yaml(plan.config).encode())
        store.write_bytes(BRANCH, told.to_bytes(plan.place))
        give_identity(store)
        branch = Run(store.uri, plan.config)
        found: list[Change] = []
        for number in range(planned.first, planned.last + 1):
            if planned.rewards:
                execute(score_rewards.STAGE, branch, number)
            execute(compute_advantages.STAGE, branch, number)
            if planned.policies:
                execute(update_policy.STAGE, branch, number)
                apply_retention(branch, number)
            found.append(compare(parent, branch, number, FIRST_CHANGED))
            on_round(found[-1])
            interrupt.safe_point()
        if planned.evaluation:
            execute(evaluate_policy.STAGE, branch, planned.last)
        report = Report(
            name=plan.name,
            parent_id=planned.parent_id,
            differs=planned.differs,
            rounds=found,
            evaluation=_evaluations(parent, branch, planned.last) if planned.evaluation else None,
            notes=_notes(plan, found),
        )
        store.write_bytes(REPORT_JSON, (json.dumps(report.as_dict(), indent=1, sort_keys=True) + "\n").encode())
        store.write_bytes(REPORT_PAGE, report.page().encode())
    return report


def label(config: RewardConfig) -> str:
    """A folder name for a reward."""
    return "components" if config.components else _plain(config.name)


def _changed_config(run: Run, wish: Wish) -> RunConfig:
    """The run's config as the wish would have it; nothing else of it may differ."""
    values: dict[str, Any] = run.config.model_dump(mode="json")
    if wish.reward is not None:
        # These belong to the reward that is left behind.
        for key in ("options", "components", "combine", "verdict_from", "smoothing"):
            del values["reward"][key]
        values["reward"]["name"] = wish.reward
    if wish.advantage is not None:
        reads = {str(estimator): options for estimator, options in READS.items()}.get(wish.advantage, ())
        kept = {key: value for key, value in values["advantage"].items() if key in reads}
        values["advantage"] = {"estimator": wish.advantage, **kept}
    for override in wish.overrides:
        section = override.strip().partition(".")[0]
        if section == "update" and not wish.retrain:
            raise UserError(f"--set {override!r}: only a branch with policies of its own reads it; add --retrain.")
        if section not in ("reward", "advantage", "update"):
            raise UserError(
                f"--set {override!r}: rescore changes the reward, the advantage and, with --retrain, the update only; "
                "write it as --set reward.key=value."
            )
    apply_overrides(values, list(wish.overrides))
    return parse_config(values, f"The branch of '{run.uri}'")


def _sets(wish: Wish, section: str) -> bool:
    return any(override.strip().startswith(f"{section}.") for override in wish.overrides)


def _other_advantages(wish: Wish) -> bool:
    return wish.advantage is not None or _sets(wish, "advantage")


def _default_name(config: RunConfig, wish: Wish, rewards: bool) -> str:
    parts = [label(config.reward)] if rewards else []
    parts += [wish.advantage] if wish.advantage else []
    parts += [_plain(override) for override in wish.overrides]
    parts += ["retrain"] if wish.retrain else []
    return "-".join(parts)[:_LONGEST_NAME]


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", ".", text.strip()).strip(".")


def _numbers(run: Run, rounds: str | None, needed: list[str]) -> list[int]:
    what = " and ".join([", ".join(needed[:-1]), needed[-1]] if needed[:-1] else needed)
    there = rounds_with(run, needed)
    if not there:
        raise UserError(f"'{run.uri}' has no {what} yet; run: grpo-rounds resume {run.uri}")
    if rounds is None:
        gap = next((n for n in range(there[0], there[-1]) if n not in there), None)
        if gap is not None:
            raise UserError(f"'{run.uri}' has no {what} of round {gap}; run: grpo-rounds resume {run.uri}")
        return there
    found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", rounds)
    if not found:
        raise UserError(f"--rounds {rounds!r} is no range; write it as 1-3, or one number.")
    first, last = int(found[1]), int(found[2] or found[1])
    numbers = [n for n in there if first <= n <= last]
    if first > last or numbers != list(range(first, last + 1)):
        raise UserError(
            f"--rounds {rounds!r}: '{run.uri}' has {what} of rounds {there[0]} to {there[-1]}; keep within."
        )
    return numbers


def _require_start(run: Run, config: RunConfig, first: int, *, rewards: bool) -> None:
    """What goes from round to round has to begin with the first."""
    if first == 1:
        return
    carried = "reward.smoothing" if rewards and config.reward.smoothing else None
    if config.advantage.estimator == "adaptive_tiers" and config.advantage != run.config.advantage:
        carried = carried or "advantage.estimator adaptive_tiers"
    if carried:
        raise UserError(f"{carried} goes from round to round, from the first on; leave --rounds out.")


def _start(first: int) -> list[str]:
    """The models that the first round's update takes."""
    return [round_folder(first - 1, kind) for kind in (("policy", "trainer_state") if first > 1 else ("policy",))]


def _require_policy(run: Run, first: int) -> None:
    for folder in _start(first):
        artifact = run.artifact(folder)
        if artifact.manifest() is None or artifact.is_retired:
            raise UserError(
                f"--retrain from round {first} on starts from '{run.uri}/{folder}', which "
                f"{'retention removed' if artifact.is_retired else 'is not there'}; let --rounds start at 1."
            )


def _require_free(run: Run, place: str) -> None:
    store = Store(place)
    found = read_branch(store)
    if found is None and (store.exists(IDENTITY) or store.files("rounds")):
        raise UserError(f"'{place}' is a training run itself, and a branch never goes into one; give --out another.")
    inside = f"{place}/".startswith(f"{run.uri}/")
    if inside and posixpath.dirname(place) != posixpath.join(run.uri, BRANCHES):
        raise UserError(f"'{place}' lies among the run's own files; give --out another, or leave it out.")
    if found is not None and found.parent_id != run.identity:
        raise UserError(f"'{place}' is a branch of another run, '{found.parent}'; give --out another.")


def _digests(run: Run, config: RunConfig, borrowed: list[str], numbers: list[int], *, retrain: bool) -> dict[str, str]:
    """What the branch reads of the run, by folder."""
    folders = [*pools(config.data, numbers[-1]), *(round_folder(n, name) for n in numbers for name in borrowed)]
    folders += [folder for n in numbers if run.artifact(folder := round_folder(n, FOLDER)).manifest() is not None]
    if retrain or needs_reference(config.reward):
        folders.append(initial_policy.FOLDER)
    folders += _start(numbers[0]) if retrain else []
    manifests = {folder: run.artifact(folder).manifest() for folder in folders}
    return {folder: "" if manifest is None else manifest.digest for folder, manifest in manifests.items()}


def _prove(run: Run, folders: Iterable[str]) -> None:
    """Nothing is taken from the parent unseen."""
    for folder in folders:
        condition = run.artifact(folder).condition()
        if not condition.done:
            raise UserError(
                f"'{run.uri}/{folder}' is {condition.state} ({condition.why}); run: grpo-rounds resume {run.uri}"
            )


def _evaluations(parent: Run, branch: Run, number: int) -> dict[str, tuple[float | None, float | None]]:
    before, after = (run.artifact(round_folder(number, "evaluation")).manifest() for run in (parent, branch))
    return metric_pairs(before.metrics if before else {}, after.metrics if after else {})


def _notes(plan: Plan, found: list[Change]) -> list[str]:
    if not plan.branch.policies:
        return []
    update, off_policy = plan.config.update, [c.round for c in found if c.update is not None and c.update.off_policy]
    notes = ["The gates' factors are the run's own of each round; the branch's metrics decide nothing."]
    if off_policy:
        notes.append(
            f"From round {off_policy[0]} on the rollouts are those of the run's policies, not of the branch's own: its "
            "updates are off-policy there, and ratio_ess and ratio_max (with the trainer's logprobs importance_ess and "
            "importance_max) say how far. What the branch would have generated by itself is not known."
        )
        if update.old_logprobs == "trainer" and update.importance.correction == "none":
            notes.append(
                "update.old_logprobs is trainer without update.importance.correction, so nothing corrects for that."
            )
    if plan.branch.evaluation and plan.branch.rewards:
        notes.append("The held-out answers of the run and of the branch are judged by each one's own reward.")
    return notes
