"""Old policies and optimiser states make room; tables and manifests always stay, and never the only copy goes."""

from tasks.run import Run, round_folder


def apply_retention(run: Run) -> list[str]:
    """Retire model files that the config does not keep; returns the artifacts retired.

    Kept: the newest K policies and optimiser states, round 0's policy (the reference) and the policy that did best on
    the held-out prompts. A round counts as newest only once its policy is finished.
    """
    keep = run.config.retention
    finished = [n for n in run.rounds_on_disk() if run.artifact(round_folder(n, "policy")).manifest()]
    policies = set(finished[-keep.policies :]) | {0, best_round(run)}
    states = set(finished[-keep.trainer_states :])
    retired = []
    for kind, kept in (("policy", policies), ("trainer_state", states)):
        for number in finished:
            artifact = run.artifact(round_folder(number, kind))
            if number not in kept and artifact.retire():
                retired.append(artifact.folder)
    return retired


def best_round(run: Run) -> int:
    """The round whose policy has the best held-out accuracy; the later one of equals, 0 before any evaluation."""
    scored = []
    for number in run.rounds_on_disk():
        manifest = run.artifact(round_folder(number, "evaluation")).manifest()
        if manifest and "accuracy" in manifest.metrics:
            scored.append((manifest.metrics["accuracy"], number))
    return max(scored, default=(0.0, 0))[1]
