"""Score a run's stored rollouts by another reward, beside the run and without generating anything."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from grpo_core.artifacts import Artifact, ArtifactWriter, Fingerprint
from grpo_core.errors import UserError
from grpo_core.rewards import smoothing
from grpo_core.rewards.config import RewardConfig
from grpo_core.schemas import REWARDS, Progress
from grpo_core.storage import Store
from tasks.pools import pools, pools_digest
from tasks.run import Run, round_folder
from tasks.score_rewards import STAGE_VERSION, reward_inputs, reward_key, scoring_labels_input
from tasks.score_round import score_round
from tasks.stage import input_digest


@dataclass(frozen=True, slots=True)
class Change:
    """What another reward changed in one round.

    ``before`` figures are None, and nothing counts as changed, where the run itself has not scored the round.
    """

    round: int
    rollouts: int
    transitions: dict[str, int]  # "wrong -> ok" and so on, changed verdicts only
    reward_mean_before: float | None
    reward_mean_after: float | None
    changed: int  # rollouts whose verdict or reward is another one
    first_changed: list[str]


def rounds_with_rollouts(run: Run) -> list[int]:
    """Rounds whose rollouts are finished, in order."""
    return [n for n in run.rounds_on_disk() if run.artifact(round_folder(n, "rollouts")).manifest() is not None]


def rescore_round(run: Run, round_number: int, config: RewardConfig, target: Store, progress: Progress) -> Artifact:
    """The round's rewards by ``config``, as an artifact below ``target``; done already where it lies there whole.

    With smoothing, the rounds before must have been rescored into ``target``.

    Raises:
        UserError: the run's own rollouts or prompts are not as their manifests say, or too many checks failed.
    """
    for folder in (round_folder(round_number, "rollouts"), *pools(run.config.data, round_number)):
        condition = run.artifact(folder).condition()
        if not condition.done:
            raise UserError(
                f"'{run.uri}/{folder}' is {condition.state} ({condition.why}); run: grpo-rounds resume {run.uri}"
            )
    artifact = Artifact(target, round_folder(round_number, "rewards"))
    inputs = {
        "rollouts": input_digest(run, round_folder(round_number, "rollouts")),
        "prompts": pools_digest(run, round_number),
        **reward_inputs(run, round_number, config),
        **scoring_labels_input(run, round_number),
    }
    past: smoothing.State = {}
    if config.smoothing and round_number > 1:
        before = Artifact(target, round_folder(round_number - 1, "rewards"))
        manifest = before.manifest()
        assert manifest is not None, "rounds are rescored in order"
        inputs["rewards_before"] = manifest.digest
        past = smoothing.from_bytes(target.read_bytes(before.file(smoothing.FILE)))
    fingerprint = Fingerprint("rescore", round_number, STAGE_VERSION, reward_key(config), inputs)
    if not artifact.condition(fingerprint).done:
        writer = ArtifactWriter(artifact, fingerprint)
        writer.finish(score_round(run, round_number, config, writer, past, progress))
    return artifact


def compare(run: Run, round_number: int, rescored: Artifact, first: int) -> Change:
    """What changed against the run's own rewards of the round; names the ``first`` so many changed rollouts."""
    after = rescored.read_table(REWARDS)
    own = run.artifact(round_folder(round_number, "rewards"))
    before = own.read_table(REWARDS) if own.manifest() is not None else REWARDS.empty_table()
    known = {row["rollout_id"]: (row["verdict"], row["reward"]) for row in _rows(before)}
    pairs = [
        (row["rollout_id"], known[row["rollout_id"]], (row["verdict"], row["reward"]))
        for row in _rows(after)
        if row["rollout_id"] in known
    ]
    transitions = Counter(f"{old[0]} -> {new[0]}" for _, old, new in pairs if old[0] != new[0])
    changed = [identity for identity, old, new in pairs if old != new]
    return Change(
        round=round_number,
        rollouts=after.num_rows,
        transitions=dict(sorted(transitions.items())),
        reward_mean_before=_mean(before),
        reward_mean_after=_mean(after),
        changed=len(changed),
        first_changed=changed[:first],
    )


def _rows(table: pa.Table) -> Sequence[dict[str, Any]]:
    rows: Sequence[dict[str, Any]] = table.select(["rollout_id", "verdict", "reward"]).to_pylist()
    return rows


def _mean(table: pa.Table) -> float | None:
    valid = table["reward"].drop_null().to_pylist()
    return sum(valid) / len(valid) if valid else None
