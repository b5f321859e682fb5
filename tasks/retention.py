"""Old policies and optimiser states make room; tables and manifests always stay, and never the only copy goes."""

from collections.abc import Iterable

from tasks.checkpoints import checkpoint_folder
from tasks.promotion_record import champion_round
from tasks.run import Run, round_folder


def apply_retention(run: Run, newest: int) -> list[str]:
    """Retire model files that the config does not keep; returns the artifacts retired.

    Kept: the newest K policies and optimiser states, round 0's policy (the reference), the policy that did best on the
    held-out prompts, the champion's, and the policy and optimiser state that a round may go back to.

    Args:
        newest: the last round that is proven. Later ones on disk may be left from before an earlier round was done
            again: they count for nothing here and are not touched.
    """
    keep = run.config.retention
    rounds = [n for n in run.rounds_on_disk() if n <= newest]
    finished = [n for n in rounds if run.artifact(round_folder(n, "policy")).manifest()]
    policies = set(finished[-keep.policies :]) | {0, best_round(run, rounds)}
    states = set(finished[-keep.trainer_states :])
    if (champion := champion_round(run, newest + 1, "registry")) is not None:
        policies.add(champion)
    anchor = None if run.config.promotion.go_back == "never" else champion_round(run, newest + 1, "training")
    if anchor is not None:
        policies.add(anchor)
        states.add(anchor)
    for number in finished:  # of a finished update nobody needs the checkpoints: a kill may have left some
        run.store.delete(checkpoint_folder(number))
    retired = []
    for kind, kept in (("policy", policies), ("trainer_state", states)):
        for number in finished:
            artifact = run.artifact(round_folder(number, kind))
            if number not in kept and artifact.retire():
                retired.append(artifact.folder)
    return retired


def best_round(run: Run, rounds: Iterable[int]) -> int:
    """Of these rounds the one with the best held-out accuracy; the later of equals, 0 before any evaluation."""
    scored = []
    for number in rounds:
        manifest = run.artifact(round_folder(number, "evaluation")).manifest()
        policy = run.artifact(round_folder(number, "policy")).manifest()
        if manifest is None or policy is None or manifest.parts["inputs"].get("policy") != policy.digest:
            continue  # it measured another policy than the one that lies there
        if "accuracy" in manifest.metrics:
            scored.append((manifest.metrics["accuracy"], number))
    return max(scored, default=(0.0, 0))[1]
