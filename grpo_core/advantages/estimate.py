"""The registry: from a round's rewards to its advantages by the estimator that the config names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from grpo_core.advantages.config import AdvantageConfig, Estimator
from grpo_core.advantages.gdpo import decoupled
from grpo_core.advantages.group import GroupAdvantages, with_statistics, z_score
from grpo_core.advantages.grouping import Bools, Floats, Groups, group_rewards
from grpo_core.advantages.pass_at_k import pass_at_k
from grpo_core.advantages.prior import Prior, empty_prior, prior_boundaries, update_prior
from grpo_core.advantages.rank import group_ranks
from grpo_core.advantages.relative import (
    batch_scaled,
    centred,
    leave_one_out,
    length_weighted,
    mean_normalised,
    whitened,
)
from grpo_core.advantages.tiers import move_boundaries, round_boundaries, tier_ranks
from grpo_core.errors import UserError


@dataclass(frozen=True, slots=True)
class Batch:
    """A round's rollouts. Every array has shape (rollouts,); ``group`` and ``sample`` together are a rollout's key."""

    reward: npt.NDArray[np.float64]  # NaN: no reward
    group: npt.NDArray[np.generic]  # equal labels form a group
    sample: npt.NDArray[np.integer]
    length: npt.NDArray[np.integer] | None = None  # of the completion in tokens; needed by opo
    components: Mapping[str, npt.NDArray[np.float64]] | None = None  # NaN: not given; needed by gdpo


@dataclass(frozen=True, slots=True)
class Estimate:
    """A round's advantages, in the order of the batch, and what the tiers among the estimators leave besides."""

    advantages: GroupAdvantages
    boundaries: Floats | None = None  # (tiers - 1,), the least reward that each tier but the bottom one admits
    prior: Prior | None = None  # adaptive_tiers: with this round's rewards in it


def estimate(batch: Batch, config: AdvantageConfig, round_number: int = 1, prior: Prior | None = None) -> Estimate:
    """Advantages of a round.

    Rows are sorted by key before anything is summed, so their order in the batch changes no bit of any advantage.

    Args:
        round_number: decides how many tiers there are.
        prior: adaptive_tiers: what the round before left; None in the first round.

    Raises:
        ValueError: shapes differ, a reward is infinite, or the batch lacks what the estimator needs.
        UserError: the rewards or their components don't suit the estimator.
    """
    _, group = np.unique(batch.group, return_inverse=True)
    order = np.lexsort((batch.sample, group))
    ordered = Batch(
        reward=np.asarray(batch.reward, dtype=np.float64)[order],
        group=group[order],
        sample=batch.sample[order],
        length=None if batch.length is None else batch.length[order],
        components=batch.components and {name: values[order] for name, values in batch.components.items()},
    )
    groups = group_rewards(ordered.reward, ordered.group)
    if config.estimator in ("tiers", "adaptive_tiers"):
        found = _tiers(groups, config, round_number, prior)
    else:
        advantage, in_loss, rank = _ESTIMATORS[config.estimator](groups, ordered, config)
        found = Estimate(replace(with_statistics(groups, advantage, in_loss, config.ddof), rank=rank))
    back = np.argsort(order)
    columns = {field.name: getattr(found.advantages, field.name) for field in fields(GroupAdvantages)}
    unsorted: dict[str, Any] = {name: None if column is None else column[back] for name, column in columns.items()}
    return replace(found, advantages=GroupAdvantages(**unsorted))


def _tiers(groups: Groups, config: AdvantageConfig, round_number: int, prior: Prior | None) -> Estimate:
    count = config.tiers_in(round_number)
    if config.estimator == "adaptive_tiers":
        before = prior or empty_prior(*config.prior_range, config.prior_bins)
        after = update_prior(before, groups.reward, config.prior_decay)
        boundaries = prior_boundaries(after, count)
    else:
        after, boundaries = None, round_boundaries(groups.reward, count)
    labels = [(reward, tier) for reward, tier in config.tier_labels if tier < count]  # fewer tiers: no such tier yet
    if labels:
        boundaries = move_boundaries(boundaries, *zip(*labels, strict=True))
    found = tier_ranks(groups.reward, boundaries, config.rank_form)
    statistics = with_statistics(groups, found.advantage, found.in_loss, config.ddof)
    return Estimate(replace(statistics, rank=found.rank, tier=found.tier), boundaries, after)


_Found = tuple[Floats, Bools, Floats | None]  # advantage, in_loss, rank
_Function = Callable[[Groups, Batch, AdvantageConfig], _Found]


def _relative(function: Callable[[Groups, AdvantageConfig], Floats]) -> _Function:
    """An estimator that is 0 and out of the loss just where a group is dead."""
    return lambda groups, batch, config: (function(groups, config), groups.live, None)


def _length_weighted(groups: Groups, batch: Batch, config: AdvantageConfig) -> _Found:
    if batch.length is None:
        raise ValueError("opo needs the lengths of the completions")
    return length_weighted(groups, batch.length.astype(np.float64)), groups.live, None


def _decoupled(groups: Groups, batch: Batch, config: AdvantageConfig) -> _Found:
    if not groups.valid.any():  # a round that could not be checked at all names no components either
        return np.zeros_like(groups.reward), groups.live, None
    if not batch.components:
        raise UserError("advantage.estimator gdpo needs a reward with components; choose another estimator or reward.")
    weights = config.component_weights or dict.fromkeys(batch.components, 1.0)
    for name in weights:
        if name not in batch.components:
            raise UserError(
                f"advantage.component_weights names {name!r}, and the reward's components are "
                f"{', '.join(sorted(batch.components))}; correct the name."
            )
    names = sorted(weights)
    components = np.where(groups.valid[:, None], np.column_stack([batch.components[name] for name in names]), np.nan)
    weight = np.array([weights[name] for name in names])
    return *decoupled(components, batch.group, weight, config.epsilon, config.ddof), None


def _rank(groups: Groups, batch: Batch, config: AdvantageConfig) -> _Found:
    advantage, rank = group_ranks(groups, config.rank_form)
    return advantage, groups.live, rank


_ESTIMATORS: dict[Estimator, _Function] = {
    "group": _relative(lambda groups, config: z_score(groups, config.epsilon, config.ddof)),
    "centred": _relative(lambda groups, config: centred(groups)),
    "batch": _relative(lambda groups, config: batch_scaled(groups, config.epsilon, config.ddof)),
    "rloo": _relative(lambda groups, config: leave_one_out(groups)),
    "reinforce_pp_baseline": _relative(lambda groups, config: whitened(groups, config.epsilon, config.ddof)),
    "gdpo": _decoupled,
    "pass_at_k": lambda groups, batch, config: (*pass_at_k(groups, config.pass_k), None),
    "opo": _length_weighted,
    "maxrl": _relative(lambda groups, config: mean_normalised(groups)),
    "rank": _rank,
}
