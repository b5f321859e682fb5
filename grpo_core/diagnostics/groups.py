"""Each prompt's group in one row, and whether prompts keep their standing from one visit to the next.

Prompts that change tier at random say that the group is too small to tell hard from easy, or that rewards are noise.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grpo_core.rewards.verdict import Verdict
from grpo_core.schemas import GROUPS

TIERS = ("solved", "mixed", "failed", "unknown")
_LEAST_PAIRS = 3  # a rank correlation of two prompts is 1 or -1, whatever they are


def group_table(rewards: pa.Table) -> pa.Table:
    """One row of ``schemas.GROUPS`` a prompt, in the order of the rewards.

    Tiers: ``solved`` when every finding is ok, ``failed`` when none is, ``mixed`` between, ``unknown`` without any.
    """
    verdicts: dict[str, list[Verdict]] = {}
    valid: dict[str, list[float]] = {}
    for row in rewards.select(["prompt_id", "verdict", "reward"]).to_pylist():
        verdicts.setdefault(row["prompt_id"], []).append(Verdict(row["verdict"]))
        values = valid.setdefault(row["prompt_id"], [])
        if row["reward"] is not None:
            values.append(row["reward"])
    rows = [
        {
            "prompt_id": prompt_id,
            "mean_reward": float(np.mean(valid[prompt_id])) if valid[prompt_id] else None,
            "tier": _tier(found),
        }
        for prompt_id, found in verdicts.items()
    ]
    return pa.Table.from_pylist(rows, schema=GROUPS)


def tier_metrics(groups: pa.Table) -> dict[str, float]:
    """Share of a round's prompts in each tier."""
    tiers = groups["tier"].to_pylist()
    return {f"tier_{tier}_share": tiers.count(tier) / len(tiers) for tier in TIERS}


def stability_metrics(groups: pa.Table, earlier: Mapping[str, Mapping[str, object]]) -> dict[str, float]:
    """How far the prompts that an earlier round took, too, stand where they stood then.

    ``group_rank_correlation`` is Spearman's, of the groups' mean rewards; it is left out below three such prompts and
    where all rewards of one visit are equal.

    Args:
        groups: this round's groups.
        earlier: by prompt_id, the row of ``schemas.GROUPS`` of its last visit; prompts never taken are absent.
    """
    pairs = [(row, earlier[row["prompt_id"]]) for row in groups.to_pylist() if row["prompt_id"] in earlier]
    metrics = {"groups_seen_before": float(len(pairs))}
    if pairs:
        metrics["tier_kept_share"] = sum(now["tier"] == then["tier"] for now, then in pairs) / len(pairs)
    rewards = [(now["mean_reward"], then["mean_reward"]) for now, then in pairs]
    valid = np.array([pair for pair in rewards if None not in pair], dtype=np.float64).reshape(-1, 2)
    if len(valid) >= _LEAST_PAIRS and (np.ptp(valid, axis=0) > 0).all():
        metrics["group_rank_correlation"] = float(np.corrcoef(_ranks(valid[:, 0]), _ranks(valid[:, 1]))[0, 1])
    return metrics


def _tier(verdicts: list[Verdict]) -> str:
    findings = [verdict for verdict in verdicts if verdict.is_finding]
    right = findings.count(Verdict.OK)
    if not findings:
        return "unknown"
    return "failed" if right == 0 else "solved" if right == len(findings) else "mixed"


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks
