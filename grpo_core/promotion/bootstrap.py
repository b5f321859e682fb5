"""The paired bootstrap over held-out prompts.

Both policies answer the same prompts, so what is resampled is the prompts, each with both answers: the variance that
the prompts' difficulty brings is in both scores and falls out of the difference. Koehn 2004, "Statistical Significance
Tests for Machine Translation Evaluation", counts the resamples in which one system beats the other; the bounds are the
percentiles of Efron & Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grpo_core.promotion.config import PromotionConfig, ScoreName
from grpo_core.rewards.verdict import Verdict

_MODES: dict[ScoreName, str] = {"accuracy": "greedy", "avg_at_k": "sample"}
_KEY = ["prompt_id", "sample_index"]
_BLOCK = 1 << 20  # prompts drawn at a time: bounds the memory to some 16 MiB
_TIE = 1e-12  # averages of thirds and fifths that are equal differ by less than this

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate against the champion, on the prompts for which both have a finding.

    Attributes:
        prompts: how many these are.
        left_out: prompts that either has answered and that are not among them.
        candidate_score: its mean over these prompts, between 0 and 1.
        champion_score: the champion's.
        difference: candidate minus champion.
        low: the difference is above this in a share ``confidence`` of the resamples.
        high: and below this in as many.
        better: share of the resamples in which the difference exceeds ``min_gain``.
        worse: share of the resamples in which it is below 0.
    """

    prompts: int
    left_out: int
    candidate_score: float
    champion_score: float
    difference: float
    low: float
    high: float
    better: float
    worse: float


def compare(candidate: pa.Table, champion: pa.Table, config: PromotionConfig, *, seed: int) -> Comparison | None:
    """Compare two evaluations of the same prompts; None when there is no prompt for which both have a finding.

    Args:
        candidate: rows of ``schemas.EVALUATION``, in any order.
        champion: likewise.
        seed: decides the resamples; the same for the same work.
    """
    scores, left_out = paired_scores(candidate, champion, config.score)
    if not len(scores):
        return None
    differences = scores[:, 0] - scores[:, 1]
    resampled = resampled_means(differences, config.resamples, seed)
    low, high = np.quantile(resampled, [1 - config.confidence, config.confidence])
    return Comparison(
        prompts=len(scores),
        left_out=left_out,
        candidate_score=float(scores[:, 0].mean()),
        champion_score=float(scores[:, 1].mean()),
        difference=float(differences.mean()),
        low=float(low),
        high=float(high),
        better=float((resampled > config.min_gain + _TIE).mean()),
        worse=float((resampled < -_TIE).mean()),
    )


def paired_scores(candidate: pa.Table, champion: pa.Table, score: ScoreName) -> tuple[Array, int]:
    """Scores by prompt, and the number of prompts that have no pair.

    Two answers are a pair when prompt and sample index agree (their seeds do, too) and both verdicts are findings: a
    check that failed says nothing about a policy. A prompt's score is the share of right answers among its pairs.

    Returns:
        ``[prompts, 2]``, the candidate's and the champion's, in order of the prompts' ids; and the prompts left out.
    """
    one, other = _answers(candidate, score), _answers(champion, score)
    pairs = (
        one.join(other, _KEY, join_type="inner", right_suffix="_champion")
        .filter(pc.field("is_finding") & pc.field("is_finding_champion"))
        .group_by("prompt_id")
        .aggregate([("is_right", "mean"), ("is_right_champion", "mean")])
        .sort_by("prompt_id")
    )
    asked = len(pc.unique(pa.concat_arrays([t["prompt_id"].combine_chunks() for t in (one, other)])))
    columns = [pairs[name].to_numpy() for name in ("is_right_mean", "is_right_champion_mean")]
    return np.stack(columns, axis=1), asked - pairs.num_rows


def _answers(evaluation: pa.Table, score: ScoreName) -> pa.Table:
    rows = evaluation.filter(pc.field("mode") == _MODES[score])
    findings = pa.array([verdict.value for verdict in Verdict if verdict.is_finding])
    return pa.table(
        {
            **{name: rows[name] for name in _KEY},
            "is_finding": pc.is_in(rows["verdict"], findings),
            "is_right": pc.equal(rows["verdict"], Verdict.OK.value),
        }
    )


def resampled_means(values: Array, resamples: int, seed: int) -> Array:
    """Means of ``resamples`` samples, each of ``len(values)`` values drawn with replacement; ``[resamples]``."""
    chance = np.random.Generator(np.random.PCG64(seed))
    rows = max(1, _BLOCK // len(values))
    means = np.empty(resamples)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = chance.integers(0, len(values), size=(count, len(values)), dtype=np.int32)
        means[start : start + count] = values[drawn].mean(axis=1)
    return means
