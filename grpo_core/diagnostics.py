"""What one round's tables say about it, as numbers to plot."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grpo_core.rewards.verdict import Verdict


def rollout_metrics(rollouts: pa.Table) -> dict[str, float]:
    """Length of completions in tokens, the share cut off at the limit, and the sampler's mean logprob per token."""
    lengths = pc.list_value_length(rollouts["completion_ids"]).to_numpy()
    truncated = pc.equal(rollouts["finish_reason"], "length").to_numpy()
    logprobs = pc.list_flatten(rollouts["logprobs"]).to_numpy()
    return {
        "rollouts": float(len(lengths)),
        "completion_tokens": float(lengths.sum()),
        "completion_length_mean": float(lengths.mean()),
        "completion_length_max": float(lengths.max()),
        "truncated_share": float(truncated.mean()),
        "sampler_logprob_mean": float(logprobs.mean(dtype=np.float64)),
    }


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


def advantage_metrics(advantages: pa.Table) -> dict[str, float]:
    """Share of groups of zero variance, rollouts in the loss, and the spread of their advantages."""
    groups = advantages.group_by("prompt_id").aggregate([("zero_variance", "max")])
    in_loss = advantages.filter(advantages["in_loss"])["advantage"].to_numpy()
    metrics = {
        "groups": float(groups.num_rows),
        "zero_variance_share": float(np.mean(groups["zero_variance_max"].to_numpy())),
        "rollouts_in_loss": float(in_loss.size),
    }
    if in_loss.size:
        metrics |= {
            "advantage_std": float(in_loss.std()),
            "advantage_min": float(in_loss.min()),
            "advantage_max": float(in_loss.max()),
        }
    return metrics
