"""The group-relative advantage of GRPO (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1)."""

from dataclasses import dataclass

from grpo_core.advantages.grouping import Bools, Floats, Groups, Ints


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """One entry a rollout, in the order of the input; every array has shape (rollouts,).

    ``group_mean`` and ``group_std`` are NaN where a group has no valid reward at all.
    """

    advantage: Floats  # exactly 0 wherever in_loss is False
    group_mean: Floats
    group_std: Floats
    group_size: Ints
    group_valid: Ints  # rollouts of the group that have a reward
    zero_variance: Bools  # all valid rewards equal, or fewer than two of them
    in_loss: Bools
    rank: Floats | None = None  # 0 to 1, inside the group or the tier; NaN: no reward; None: not by ranks
    tier: Ints | None = None  # 0 is the bottom, -1: no reward; None: not by tiers


def z_score(groups: Groups, epsilon: float, ddof: int) -> Floats:
    """(r - mean) / (std + epsilon) within each group; 0 outside live groups; shape (rollouts,)."""
    return groups.where_live((groups.reward - groups.mean[groups.of]) / (groups.std(ddof)[groups.of] + epsilon))


def with_statistics(groups: Groups, advantage: Floats, in_loss: Bools, ddof: int) -> GroupAdvantages:
    """Advantages beside the statistics of the groups that they belong to."""
    return GroupAdvantages(
        advantage=advantage,
        group_mean=groups.mean[groups.of],
        group_std=groups.std(ddof)[groups.of],
        group_size=groups.size[groups.of],
        group_valid=groups.valid_size[groups.of],
        zero_variance=groups.dead[groups.of],
        in_loss=in_loss,
    )
