"""What ``build_reward`` gives: a reward function that can be closed."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from grpo_core.rewards.verdict import RewardFunction, Sample, Score
from grpo_core.rewards.workers import WorkerPool


class Reward:
    """A ``RewardFunction`` that can be closed; closing ends worker processes, and a later call starts them again."""

    def __init__(self, function: RewardFunction, pool: WorkerPool | None = None) -> None:
        self._function = function
        self._pool = pool

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """Scores ``samples``, one score each, in order."""
        return self._function(samples)

    def close(self) -> None:
        """Ends the worker processes behind this reward, which rewards of equal settings share."""
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
