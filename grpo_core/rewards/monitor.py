"""Signs that a policy has found out how to be paid without being better. Pure: from a round's columns to numbers.

None of them proves anything; each says where to look. What they mean stands in docs/rewards.md.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

_SHINGLE = 5  # tokens
_BINS = 64
_BANDS = 16
_ALIKE = 0.8  # estimated Jaccard from which two completions are near-duplicates
_LEAST_EVALUATIONS = 3
EMPTY_BIN = np.uint64(2**64 - 1)


def common_answers(extracted: Sequence[str | None], top: int = 5) -> list[tuple[str, float]]:
    """The most common final answers of a round, over all prompts, with their share of all answers that were found."""
    answers = Counter(answer for answer in extracted if answer is not None)
    total = sum(answers.values())
    ranked = sorted(answers.items(), key=lambda item: (-item[1], item[0]))[:top]
    return [(answer, count / total) for answer, count in ranked]


def format_alone_share(
    components: Sequence[Mapping[str, float | None]],
    right: Sequence[bool],
    weights: Mapping[str, float],
    format_names: Sequence[str],
) -> float | None:
    """Of all that was paid in a round, the share that format earned for answers that were not right.

    With F_i the weighted format components of rollout i and O_i the sum of the others, both where above 0:
    sum over i not right of F_i / sum over all i of (F_i + O_i). None where no component pays for form, or nothing paid.
    """
    if not format_names:
        return None
    alone = paid = 0.0
    for values, is_right in zip(components, right, strict=True):
        weighted = {name: weights.get(name, 0.0) * value for name, value in values.items() if value is not None}
        for_format = max(0.0, sum(value for name, value in weighted.items() if name in format_names))
        paid += for_format + max(0.0, sum(value for name, value in weighted.items() if name not in format_names))
        alone += 0.0 if is_right else for_format
    return alone / paid if paid > 0 else None


def near_duplicate_share(completions: Sequence[Sequence[int]]) -> float:
    """The share of completions of a round that have a near-duplicate anywhere in it, over all prompts.

    Completions are sets of runs of five tokens; two are near-duplicates from a Jaccard similarity of 0.8. It is
    estimated from one-permutation MinHash sketches of 64 bins (Li et al. 2012, arXiv 1208.1259), and looked for among
    those whose sketches agree in four bins in a row: linear in the tokens of the round.
    """
    if not completions:
        return 0.0
    sketches = np.stack([sketch(ids) for ids in completions])
    found = np.zeros(len(sketches), dtype=bool)
    for band in np.split(sketches, _BANDS, axis=1):
        _, bucket = np.unique(band, axis=0, return_inverse=True)
        order = np.argsort(bucket, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(bucket[order]) > 0])
        for rows in np.split(order, starts[1:]):
            first, others = rows[0], rows[1:]
            alike = others[_similarity(sketches[others], sketches[first]) >= _ALIKE]
            found[alike] = True
            found[first] |= bool(alike.size)
    return float(found.mean())


def sketch(ids: Sequence[int]) -> npt.NDArray[np.uint64]:
    """The least hash of a completion's runs of five tokens in each of 64 bins, all ones where that is empty; (64,)."""
    tokens = np.asarray(ids, dtype=np.uint64)
    size = min(_SHINGLE, max(1, tokens.size))
    hashes = np.zeros(max(0, tokens.size - size + 1), dtype=np.uint64)
    for offset in range(size):
        hashes = _mixed(hashes * np.uint64(0x9E3779B97F4A7C15) + tokens[offset : offset + hashes.size] + np.uint64(1))
    bins = np.full(_BINS, EMPTY_BIN)
    np.minimum.at(bins, (hashes % np.uint64(_BINS)).astype(np.int64), hashes)
    return bins


def trend(rewards: Mapping[int, float], accuracy: Mapping[int, float], stderr: float) -> dict[str, float]:
    """Is the reward going up while held-out accuracy stands still?

    Args:
        rewards: mean reward by round, in the window that ``accuracy`` spans.
        accuracy: held-out accuracy by round, for the last rounds that were evaluated.
        stderr: standard error of the last accuracy.

    Returns:
        ``reward_rise`` and ``heldout_rise``: least-squares slope times the window's rounds;
        ``reward_up_heldout_flat``: 1 where the reward rose by more than twice its standard error and accuracy by no
        more than its own, else 0. Nothing with fewer than three points of either.
    """
    if len(rewards) < _LEAST_EVALUATIONS or len(accuracy) < _LEAST_EVALUATIONS:
        return {}
    span = max(accuracy) - min(accuracy)
    reward_slope, reward_error = _slope(rewards)
    heldout_slope, _ = _slope(accuracy)
    up = reward_slope > 0 and reward_slope > 2 * reward_error
    flat = heldout_slope * span <= stderr
    return {
        "reward_rise": reward_slope * span,
        "heldout_rise": heldout_slope * span,
        "reward_up_heldout_flat": float(up and flat),
    }


def _slope(points: Mapping[int, float]) -> tuple[float, float]:
    """Least-squares slope per round, and its standard error."""
    x = np.array(sorted(points), dtype=np.float64)
    y = np.array([points[int(n)] for n in x])
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    residuals = y - y.mean() - slope * x
    return slope, float(np.sqrt(residuals @ residuals / max(1, len(x) - 2) / (x @ x)))


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection whose every output bit depends on every input bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _similarity(sketches: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Share of the bins that agree, among those filled in either; shape (rows,)."""
    filled = (sketches != EMPTY_BIN) | (other != EMPTY_BIN)
    agree = ((sketches == other) & filled).sum(axis=1)
    return np.asarray(np.where(filled.any(axis=1), agree / np.maximum(1, filled.sum(axis=1)), 1.0), dtype=np.float64)
