import pyarrow as pa
import pytest

from grpo_core.diagnostics import group_table, stability_metrics, tier_metrics
from grpo_core.schemas import GROUPS


def rewards(*rows: tuple[str, str, float | None]) -> pa.Table:
    prompt_ids, verdicts, values = zip(*rows, strict=True)
    return pa.table({"prompt_id": prompt_ids, "verdict": verdicts, "reward": pa.array(values, pa.float64())})


def groups(**means: float | None) -> pa.Table:
    rows = [{"prompt_id": prompt, "mean_reward": mean, "tier": "mixed"} for prompt, mean in means.items()]
    return pa.Table.from_pylist(rows, schema=GROUPS)


def by_prompt(table: pa.Table) -> dict[str, dict]:
    return {row["prompt_id"]: row for row in table.to_pylist()}


def test_tiers_by_findings_and_means_by_valid_rewards():
    table = group_table(
        rewards(
            *[("easy", "ok", 1.1), ("easy", "ok", 1.0), ("easy", "timeout", None)],
            *[("some", "ok", 1.0), ("some", "wrong", 0.0)],
            *[("hard", "wrong", 0.0), ("hard", "unparsable", -0.5)],
            *[("lost", "error", None), ("lost", "missing", None)],
        )
    )
    assert table.to_pylist() == [
        {"prompt_id": "easy", "mean_reward": pytest.approx(1.05), "tier": "solved"},
        {"prompt_id": "some", "mean_reward": 0.5, "tier": "mixed"},
        {"prompt_id": "hard", "mean_reward": -0.25, "tier": "failed"},
        {"prompt_id": "lost", "mean_reward": None, "tier": "unknown"},
    ]
    assert set(tier_metrics(table).values()) == {0.25}


def test_rank_correlation_by_hand():
    # Ranks now 1 2 3 4, then 1 3 2 4: differences 0 1 1 0, so 1 - 6 * 2 / (4 * 15) = 0.8.
    now, then = groups(a=0.0, b=0.1, c=0.2, d=5.0), groups(d=0.9, c=0.3, b=0.4, a=0.2)
    assert stability_metrics(now, by_prompt(then))["group_rank_correlation"] == pytest.approx(0.8)


def test_ties_share_a_rank():
    # Ranks 1.5 1.5 3 against 1 2 3: cov = (-0.5 * -1 + 0 + 1 * 1) / 3 = 0.5, variances 0.5 and 2 / 3.
    now, then = groups(a=0.0, b=0.0, c=1.0), groups(a=0.1, b=0.2, c=0.3)
    correlation = stability_metrics(now, by_prompt(then))["group_rank_correlation"]
    assert correlation == pytest.approx(0.5 / (0.5 * 2 / 3) ** 0.5)


def test_only_prompts_seen_before_count():
    now = group_table(rewards(("a", "ok", 1.0), ("b", "wrong", 0.0), ("c", "ok", 1.0)))
    then = by_prompt(group_table(rewards(("a", "ok", 1.0), ("b", "ok", 1.0), ("x", "ok", 1.0))))
    # Two of the three were there before, one kept its tier; a correlation of two would say nothing.
    assert stability_metrics(now, then) == {"groups_seen_before": 2.0, "tier_kept_share": 0.5}
    assert stability_metrics(now, {}) == {"groups_seen_before": 0.0}


def test_no_correlation_of_equal_or_missing_means():
    then = by_prompt(groups(a=0.1, b=0.2, c=0.3))
    assert "group_rank_correlation" not in stability_metrics(groups(a=1.0, b=1.0, c=1.0), then)
    assert "group_rank_correlation" not in stability_metrics(groups(a=1.0, b=None, c=0.0), then)
