"""People's tiers as an estimator with tiers takes them: pairs of a reward and a tier, as in its own option."""

from collections.abc import Iterable

from grpo_core.labels.label import Label


def tier_pairs(labels: Iterable[Label], count: int) -> tuple[tuple[float, int], ...]:
    """(reward of the labelled rollout, tier) for each label of the kind ``tier`` whose rollout has a reward.

    Args:
        count: how many tiers the round has; ``top`` is the last of them. A number beyond stays as it is: the estimator
            passes it over until there is such a tier.
    """
    named = {"top": count - 1, "bottom": 0}
    return tuple(
        (label.reward, named[label.value] if label.value in named else int(label.value))
        for label in labels
        if label.kind == "tier" and label.reward is not None
    )
