"""Processes that share one update: who takes which micro-batch, and how what they saw comes together again.

Every rank plans the same passes from the same rollouts, so only numbers travel. Micro-batches do not depend on how many
ranks there are, and what comes together is in their order: sums over them are those of one process.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_core.policy.batching import Microbatch, PackedGroup

_T = TypeVar("_T")

_NOTHING = Microbatch([PackedGroup([0], [[0]])], [])


@dataclass(frozen=True, slots=True)
class Turn:
    """Micro-batches that are computed at the same time, one a rank; in the last turn some ranks may have none."""

    batches: Sequence[Microbatch]  # of ranks 0, 1, …
    mine: Microbatch  # without rollouts where this rank has none: one token to compute with, whose gradient is 0

    @property
    def is_mine(self) -> bool:
        """Whether this rank has a micro-batch in it."""
        return bool(self.mine.rollouts)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of an update. One alone: nothing travels and every turn has one micro-batch."""

    rank: int = 0
    size: int = 1

    def turns(self, batches: Sequence[Microbatch]) -> Iterator[Turn]:
        """The micro-batches in order, as many at a time as there are ranks; as many turns on every rank.

        A sharded model's passes are done by all ranks together or hang, so that a rank without a micro-batch
        computes something, too.
        """
        for first in range(0, len(batches), self.size):
            together = batches[first : first + self.size]
            yield Turn(together, together[self.rank] if self.rank < len(together) else _NOTHING)

    def rows(self, values: Tensor, turn: Turn) -> list[Tensor]:
        """The values that each rank has of its micro-batch, all of one shape and dtype, in the micro-batches' order."""
        if self.size == 1:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(gathered, values)
        return gathered[: len(turn.batches)]

    def in_order(self, mine: Iterable[_T]) -> list[_T]:
        """One item a micro-batch from its own rank, at the end of a pass: all of them in the micro-batches' order."""
        kept = list(mine)
        if self.size == 1:
            return kept
        by_rank: list[Any] = [None] * self.size
        dist.all_gather_object(by_rank, kept)
        return [found[turn] for turn in range(len(by_rank[0])) for found in by_rank if turn < len(found)]

    def add_up(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients of weights that every rank holds whole; one without a gradient adds 0."""
        if self.size == 1:
            return
        for weight in parameters:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(weight.grad)


ALONE = Ranks()
