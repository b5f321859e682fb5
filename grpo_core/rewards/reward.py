"""What ``build_reward`` gives: a reward function that tries failed checks again and can be closed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from grpo_core.rewards.verdict import RewardFunction, Sample, Score, sound


class Reward:
    """A ``RewardFunction`` that can be closed.

    Args:
        close: frees the memory of models; a later call loads them again.
    """

    def __init__(self, function: RewardFunction, close: Callable[[], None] | None = None) -> None:
        self._function = function
        self._close = close

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """Scores ``samples``, one score each, in order."""
        return self._function(samples)

    def close(self) -> None:
        """Frees the memory of the models behind this reward; a later call loads them again."""
        if self._close is not None:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def retried(function: RewardFunction, retries: int, *, whole_groups: bool) -> RewardFunction:
    """Scores, then scores again what is no finding, ``retries`` times at most; what still fails is masked.

    The further tries come after all other samples of the call, so that a hiccup of a service or of a loaded machine has
    time to pass.

    Args:
        whole_groups: a try again sees every completion of a group, because the function compares them; only the scores
            of those that failed are taken from it.
    """

    def score(samples: Sequence[Sample]) -> list[Score]:
        scores = [sound(found) for found in function(samples)]
        for _ in range(retries):
            failed = {index for index, found in enumerate(scores) if not found.verdict.is_finding}
            if not failed:
                break
            groups = {samples[index].group for index in failed} - {""} if whole_groups else set()
            again = [index for index, sample in enumerate(samples) if index in failed or sample.group in groups]
            for index, found in zip(again, function([samples[index] for index in again]), strict=True):
                if index in failed:
                    scores[index] = replace(sound(found), seconds=scores[index].seconds + found.seconds)
        return scores

    return score
