"""What a round says about itself, as numbers to plot and for gates to act on; docs/diagnostics.md explains each.

Cheap to import: ``gradients`` alone needs torch and is imported by its own name.
"""

from grpo_core.diagnostics.advantages import advantage_metrics
from grpo_core.diagnostics.direction import choose_groups, update_direction
from grpo_core.diagnostics.groups import group_table, stability_metrics, tier_metrics
from grpo_core.diagnostics.rewards import length_by_verdict, reward_metrics
from grpo_core.diagnostics.rollouts import rollout_metrics

__all__ = [
    "advantage_metrics",
    "choose_groups",
    "group_table",
    "length_by_verdict",
    "reward_metrics",
    "rollout_metrics",
    "stability_metrics",
    "tier_metrics",
    "update_direction",
]
