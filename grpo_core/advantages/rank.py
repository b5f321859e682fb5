"""Ranks as advantages: only the order of rewards counts, never their size."""

from typing import Literal

import numpy as np

from grpo_core.advantages.grouping import Floats, Groups, Ints

RankForm = Literal["centred", "unit"]


def group_ranks(groups: Groups, form: RankForm) -> tuple[Floats, Floats]:
    """The rank of a reward inside its group; equal rewards share their average rank.

    Returns:
        Advantages, shape (rollouts,): the rank (``unit``, from 0 to 1) or the rank less its mean, which is 1/2
        (``centred``, from -1/2 to 1/2); exactly 0 outside live groups. And the ranks from 0 to 1, shape (rollouts,):
        NaN where there is no reward, 1/2 where a group has one reward only.
    """
    rank = np.full_like(groups.reward, np.nan)
    rank[groups.valid] = shared_ranks(groups.reward[groups.valid], groups.of[groups.valid])
    return groups.where_live(rank - 0.5 if form == "centred" else rank), rank


def shared_ranks(values: Floats, labels: Ints) -> Floats:
    """Ranks among the values of one label, from 0 (least) to 1 (greatest), ties shared; 1/2 for a value alone."""
    if not values.size:
        return np.zeros(0)
    order = np.lexsort((values, labels))
    value, label = values[order], labels[order]
    new_label = np.append(True, label[1:] != label[:-1])
    new_value = new_label | np.append(True, value[1:] != value[:-1])
    starts = np.flatnonzero(new_value)
    tie = np.cumsum(new_value) - 1  # which run of equal values a row is in
    tied = np.diff(starts, append=len(order))
    label_starts = np.flatnonzero(new_label)
    member = np.cumsum(new_label) - 1
    size = np.diff(label_starts, append=len(order))[member]
    twice = 2 * (starts[tie] - label_starts[member]) + tied[tie] - 1  # twice the average rank, a whole number
    ranks = np.empty(len(order))
    ranks[order] = np.where(size > 1, twice / np.maximum(2 * (size - 1), 1), 0.5)
    return ranks
