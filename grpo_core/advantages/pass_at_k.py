"""Pass@k as the objective: PKPO with its baseline loo-1 (Walder and Karkhanis 2025, arXiv 2505.15201)."""

from math import comb

import numpy as np

from grpo_core.advantages.grouping import Bools, Floats, Groups


def pass_at_k(groups: Groups, k: int) -> tuple[Floats, Bools]:
    """A_i = n / C(n, k) * the sum of max(r of I) - max(r of I without i) over all I of k rollouts that hold i.

    The paper's s_i with the baseline loo-1, times n because the loss is a mean over the group. It is an unbiased
    gradient of the expected best of k rewards (of pass@k, where rewards are 0 and 1) and never negative. In the order
    of rewards A begins at 0 and grows from the j-th to the next by n C(j, k - 1) / C(n, k) times the step in reward, so
    equal rewards get equal advantages to the bit. A group with fewer than k valid rewards has no unbiased estimate and
    leaves the loss.

    Args:
        k: at least 2.

    Returns:
        Advantages and whether they are in the loss, both of shape (rollouts,).
    """
    in_loss = groups.live & (groups.valid_size >= k)[groups.of]
    advantage = np.zeros_like(groups.reward)
    rows = np.flatnonzero(in_loss)
    rows = rows[np.lexsort((groups.reward[rows], groups.of[rows]))]
    slopes = {n: _slopes(n, k) for n in np.unique(groups.valid_size[groups.of[rows]]).tolist()}
    starts = np.flatnonzero(np.diff(groups.of[rows], prepend=-1))
    for start in starts.tolist():
        size = int(groups.valid_size[groups.of[rows[start]]])
        members = rows[start : start + size]
        advantage[members[1:]] = np.cumsum(np.diff(groups.reward[members]) * slopes[size])
    return advantage, in_loss


def _slopes(n: int, k: int) -> Floats:
    """n C(j, k - 1) / C(n, k) for j from 1 to n - 1, from whole numbers."""
    return np.array([n * comb(j, k - 1) / comb(n, k) for j in range(1, n)])
