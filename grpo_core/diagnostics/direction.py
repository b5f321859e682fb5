"""Whether an update did what its advantages asked for: logprobs of good rollouts up, of bad ones down."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from grpo_core.seeding import hash64


def choose_groups(prompt_ids: Iterable[str], count: int, *, seed: int, round_number: int) -> set[str]:
    """At most ``count`` of the prompts, by hash of (seed, round, prompt_id): the same ones whatever their order."""
    order = sorted(set(prompt_ids), key=lambda p: (hash64(seed, "direction", round_number, p), p))
    return set(order[:count])


def update_direction(
    before: Sequence[npt.NDArray[np.float32]],
    after: Sequence[npt.NDArray[np.float32]],
    advantages: Sequence[float],
) -> dict[str, float]:
    """Signed change of the rollouts' mean logprobs, in nats a token: above 0 the update went where it should.

    With d = mean(after - before) over a rollout's tokens: ``direction`` is the mean of sign(A) * d,
    ``direction_weighted`` is sum(A * d) / sum(|A|), ``direction_good`` and ``direction_bad`` are the means of d where A
    is above and below 0. A good rollout can lose while the whole is right: training on a bad one that resembles it
    pulls it down (likelihood displacement, Razin et al. 2024, arXiv 2410.08847). Rollouts with A = 0 count for nothing.

    Args:
        before, after: per rollout (tokens,), under the policy before and after.
        advantages: one a rollout.

    Returns:
        Empty where every advantage is 0.
    """
    moved = np.array([float((b - a).mean(dtype=np.float64)) for a, b in zip(before, after, strict=True)])
    weights = np.asarray(advantages, dtype=np.float64)
    good, bad = weights > 0, weights < 0
    if not (good | bad).any():
        return {}
    metrics = {
        "direction": float((np.sign(weights) * moved)[good | bad].mean()),
        "direction_weighted": float((weights * moved).sum() / np.abs(weights).sum()),
    }
    if good.any():
        metrics["direction_good"] = float(moved[good].mean())
    if bad.any():
        metrics["direction_bad"] = float(moved[bad].mean())
    return metrics
