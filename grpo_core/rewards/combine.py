"""Several components, one reward: masks, weights, normalising inside the group. Pure numbers; NaN means masked.

Shapes: N rollouts, K components.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EPSILON = 1e-4  # added to a group's std, as in the advantage


def total_reward(values_NK: Array, weights_K: Array) -> Array:
    """R = sum over k of w_k r_k; shape (N,).

    NaN wherever a component of non-zero weight is masked: a sum of what happens to be there would compare rollouts by
    which checks failed. A component of weight 0 takes no part, masked or not.
    """
    total = np.zeros(len(values_NK))
    for k in np.flatnonzero(weights_K):  # one after another: a fixed order of additions gives equal bytes
        total = total + weights_K[k] * values_NK[:, k]
    return total


def normalise_in_groups(values_NK: Array, groups_N: npt.NDArray[np.integer]) -> Array:
    """a_k = (r_k - mean_group(r_k)) / (std_group(r_k) + 1e-4) for every component separately; shape (N, K).

    The first step of GDPO (arXiv 2601.05242), whose second is the weighted sum. The third, normalising over
    the batch, is the advantage's. The std is that of a sample (n - 1). Masked values stay masked and take no part.
    Where a component's valid values in a group are all equal, or there is only one, it says nothing there: exactly 0.
    """
    found = np.full(values_NK.shape, np.nan)
    for group in np.unique(groups_N):
        rows = np.flatnonzero(groups_N == group)
        for k in range(values_NK.shape[1]):
            valid = rows[~np.isnan(values_NK[rows, k])]
            r = values_NK[valid, k]
            if r.size == 0:
                continue
            # By min and max: the mean of equal numbers need not be that number, and the residue over epsilon is noise.
            found[valid, k] = 0.0 if r.min() == r.max() else (r - r.mean()) / (r.std(ddof=1) + EPSILON)
    return found
