"""Sums and means over the sequences of a flat batch of tokens, and back again; sums in a fixed order on any device."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segments:
    """S sequences that lie one after the other in T tokens; none is empty."""

    lengths: Tensor  # (S,) long
    index: Tensor  # (T,) long: the sequence of each token

    @classmethod
    def of(cls, lengths: Tensor) -> "Segments":
        """From the lengths (S,) alone."""
        return cls(lengths, torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths))

    def sum(self, values: Tensor) -> Tensor:
        """(T,) to (S,)."""
        return torch.segment_reduce(values, "sum", lengths=self.lengths)

    def mean(self, values: Tensor) -> Tensor:
        """(T,) to (S,)."""
        return self.sum(values) / self.lengths

    def spread(self, values: Tensor) -> Tensor:
        """(S,) to (T,): each sequence's value at each of its tokens."""
        # An embedding lookup, because the backward pass of an index adds up in whatever order threads arrive.
        return F.embedding(self.index, values.unsqueeze(-1)).squeeze(-1)
