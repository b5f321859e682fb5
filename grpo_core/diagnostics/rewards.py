"""What the verdicts and rewards of a round say, and how long the right and the wrong completions are."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grpo_core.rewards.verdict import Verdict


def reward_metrics(rewards: pa.Table) -> dict[str, float]:
    """Accuracy among findings, reward mean and std among valid rewards, component means and verdict shares."""
    verdicts = rewards["verdict"].to_pylist()
    findings = [Verdict(v) for v in verdicts if Verdict(v).is_finding]
    valid = rewards["reward"].drop_null().to_numpy().astype(np.float64)
    metrics = {f"verdict_{v.value}_share": verdicts.count(v.value) / len(verdicts) for v in Verdict}
    metrics["unchecked"] = float(len(verdicts) - len(findings))
    if findings:
        metrics["accuracy"] = findings.count(Verdict.OK) / len(findings)
    if valid.size:
        metrics["reward_mean"] = float(valid.mean())
        metrics["reward_std"] = float(valid.std())
    totals: dict[str, list[float]] = {}
    for components in rewards["components"].to_pylist():
        for name, value in components:
            if value is not None:  # masked
                totals.setdefault(name, []).append(value)
    for name in sorted(totals):
        metrics[f"reward_{name}_mean"] = float(np.mean(totals[name]))
    return metrics


def length_by_verdict(rollouts: pa.Table, rewards: pa.Table) -> dict[str, float]:
    """Mean length in tokens of the right, of the wrong and of the cut off completions; an empty kind is left out.

    Wrong answers that grow while right ones don't are the length bias of a loss that averages by completion (Dr. GRPO,
    arXiv 2503.20783, section 3.1). A completion that was cut off counts under its verdict, too.

    Args:
        rollouts: ``rollout_id``, ``completion_ids`` and ``finish_reason``.
        rewards: ``rollout_id`` and ``verdict`` of the same rollouts, in any order.
    """
    verdict_of = dict(zip(rewards["rollout_id"].to_pylist(), rewards["verdict"].to_pylist(), strict=True))
    verdicts = np.array([verdict_of[rollout_id] for rollout_id in rollouts["rollout_id"].to_pylist()])
    lengths = pc.list_value_length(rollouts["completion_ids"]).to_numpy()
    kinds = {
        "ok": verdicts == Verdict.OK.value,
        "wrong": verdicts == Verdict.WRONG.value,
        "truncated": pc.equal(rollouts["finish_reason"], "length").to_numpy(zero_copy_only=False),
    }
    return {f"length_{kind}_mean": float(lengths[members].mean()) for kind, members in kinds.items() if members.any()}
