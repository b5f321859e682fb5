"""How a round's advantages are spread: dead groups, quantiles, skew, and how far they are from evenly spread ranks."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def advantage_metrics(advantages: pa.Table) -> dict[str, float]:
    """Share of groups of zero variance, and how the advantages in the loss are spread, where there are any.

    ``advantage_skew`` is the third standardised moment: far from 0, a few rollouts carry the update. It and
    ``advantage_uniform_distance`` are left out where all advantages are equal.
    """
    groups = advantages.group_by("prompt_id").aggregate([("zero_variance", "max")])
    in_loss = advantages.filter(advantages["in_loss"])["advantage"].to_numpy()
    metrics = {
        "groups": float(groups.num_rows),
        "zero_variance_share": float(np.mean(groups["zero_variance_max"].to_numpy())),
        "rollouts_in_loss": float(in_loss.size),
    }
    if in_loss.size:
        low, median, high = np.quantile(in_loss, [0.1, 0.5, 0.9])
        metrics |= {
            "advantage_std": float(in_loss.std()),
            "advantage_min": float(in_loss.min()),
            "advantage_max": float(in_loss.max()),
            "advantage_q10": float(low),
            "advantage_median": float(median),
            "advantage_q90": float(high),
            "advantage_positive_share": float((in_loss > 0).mean()),
        }
        if in_loss.max() > in_loss.min():
            centred = in_loss - in_loss.mean()
            metrics["advantage_skew"] = float((centred**3).mean() / in_loss.std() ** 3)
            metrics["advantage_uniform_distance"] = uniform_distance(in_loss)
    return metrics


def uniform_distance(values: npt.NDArray[np.float64]) -> float:
    """Kolmogorov-Smirnov distance between values and the uniform distribution from their least to their largest.

    The largest gap between the two distribution functions. Ranks without ties in groups of G have 1/G, the least that G
    values can have; right-or-wrong rewards with a share p of one kind have max(p, 1 - p).

    Args:
        values: shape (n,), not all equal.
    """
    ordered = np.sort(values)
    place = (ordered - ordered[0]) / (ordered[-1] - ordered[0])
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - place).max(), (place - steps[:-1]).max()))
