"""``grpo-rounds rescore``: what another reward would have said of the rollouts that a run has stored."""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prefect import flow
from rich.console import Console
from rich.markup import escape

from flows.places import Place
from grpo_core.config import apply_overrides, parse_config, to_yaml
from grpo_core.errors import UserError
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import build_reward
from grpo_core.schemas import no_progress
from grpo_core.storage import Store
from tasks.rescore import Change, compare, rescore_round, rounds_with_rollouts
from tasks.run import CONFIG, IDENTITY, Run, open_run, single_writer

_FIRST_CHANGED = 20


@dataclass(frozen=True, slots=True)
class Rescored:
    """What rescoring left: the folder, the reward's name, and what changed, a round each."""

    out: str
    reward: str
    changes: list[Change]


@flow(name="rescore")
def rescore(
    run_dir: Place,
    reward: str | None = None,
    overrides: Sequence[str] = (),
    rounds: str | None = None,
    out_dir: Place | None = None,
) -> dict[str, Any]:
    """Score the stored rollouts again by another reward, beside the run, and return what changed.

    Args:
        reward: another reward's name; by default the run's own, as its code is now.
        overrides: ``reward.key=value``, each changes one key.
        rounds: ``1-3`` or one number; by default all.
        out_dir: where the rewards go; by default RUN/rescored/<reward>.

    Raises:
        UserError: no such rollouts, a reward that is none, or a folder that is a run itself.
    """
    return asdict(rescore_run(run_dir, reward, list(overrides), rounds, out_dir, lambda _: None))


def rescore_run(
    run_dir: str,
    reward: str | None,
    overrides: list[str],
    rounds: str | None,
    out_dir: str | None,
    tell: Callable[[Change], None],
) -> Rescored:
    """Score the stored rollouts again, beside the run; ``tell`` hears what changed, a round at a time."""
    run = open_run(run_dir)
    chosen = _with_reward(run, reward, overrides)
    config = chosen.config.reward
    build_reward(config)  # a wrong name or option is told before a folder is made
    numbers = _numbers(run, rounds)
    if config.smoothing and numbers != rounds_with_rollouts(run):
        raise UserError("reward.smoothing goes from round to round, from the first on; leave --rounds out.")
    place = out_dir or posixpath.join(run.uri, "rescored", _label(config))
    target = Store(place)
    if target.exists(IDENTITY):
        raise UserError(f"'{place}' is a training run itself, and rescoring never writes into one; give --out another.")
    changes: list[Change] = []
    with single_writer(place):
        target.write_bytes(CONFIG, to_yaml(chosen.config).encode())
        for number in numbers:
            rescored = rescore_round(run, number, config, target, no_progress)
            changes.append(compare(run, number, rescored, _FIRST_CHANGED))
            tell(changes[-1])
    return Rescored(target.uri, _label(config), changes)


def rescore_session(
    run_dir: str,
    reward: str | None,
    overrides: list[str],
    rounds: str | None,
    out_dir: str | None,
    as_json: bool,
    out: Console,
) -> None:
    """Score the stored rollouts again, beside the run, and print what changed, a round at a time."""
    from flows.cli import echo_json

    def tell(change: Change) -> None:
        if not as_json:
            _print(change, out)

    done = rescore_run(run_dir, reward, overrides, rounds, out_dir, tell)
    if as_json:
        changed = [asdict(change) for change in done.changes]
        echo_json({"run": open_run(run_dir).uri, "out": done.out, "reward": done.reward, "rounds": changed})
        return
    out.print(f"New rewards: {escape(done.out)}", soft_wrap=True)


def _with_reward(run: Run, reward: str | None, overrides: list[str]) -> Run:
    """The run as if its config named another reward; nothing else of it may differ."""
    values: dict[str, Any] = run.config.model_dump(mode="json")
    if reward is not None:
        # These belong to the reward that is left behind.
        for key in ("options", "components", "combine", "verdict_from", "smoothing"):
            del values["reward"][key]
        values["reward"]["name"] = reward
    for override in overrides:
        if not override.strip().startswith("reward."):
            raise UserError(f"--set {override!r}: rescore changes the reward only; write it as --set reward.key=value.")
    apply_overrides(values, overrides)
    return Run(run.uri, parse_config(values, f"The reward for '{run.uri}'"))


def _label(config: RewardConfig) -> str:
    """A folder name for a reward."""
    return "components" if config.components else re.sub(r"[^\w.-]+", ".", config.name)


def _numbers(run: Run, rounds: str | None) -> list[int]:
    there = rounds_with_rollouts(run)
    if not there:
        raise UserError(f"'{run.uri}' has no rollouts yet; run: grpo-rounds resume {run.uri}")
    if rounds is None:
        return there
    found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", rounds)
    if not found:
        raise UserError(f"--rounds {rounds!r} is no range; write it as 1-3, or one number.")
    first, last = int(found[1]), int(found[2] or found[1])
    numbers = [n for n in there if first <= n <= last]
    if first > last or numbers != list(range(first, last + 1)):
        raise UserError(
            f"--rounds {rounds!r}: '{run.uri}' has rollouts of rounds {there[0]} to {there[-1]}; keep within."
        )
    return numbers


def _print(change: Change, out: Console) -> None:
    before, after = (
        "none" if mean is None else f"{mean:.3f}" for mean in (change.reward_mean_before, change.reward_mean_after)
    )
    moves = ", ".join(f"{count} {move}" for move, count in change.transitions.items()) or "no verdict changed"
    out.print(
        f"round {change.round:>4}  {change.changed} of {change.rollouts} changed  reward {before} -> {after}  {moves}",
        soft_wrap=True,
    )
    for identity in change.first_changed:
        out.print(f"            {escape(identity)}", soft_wrap=True)
    if change.changed > len(change.first_changed):
        out.print(f"            and {change.changed - len(change.first_changed)} more")
