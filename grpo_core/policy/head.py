"""The language-model head on a CPU, with its logits and its gradient in memory that is kept.

Both are larger than the largest block that glibc's malloc keeps for itself (32 MiB). Made anew in each micro-batch,
every page of them would be asked of the system and filled with zeros first, a tenth of an update's time, and the
gradient would stand beside the one that it is added to.
"""

from typing import Any

import torch
from torch import Tensor, nn


class HeadMemory:
    """Of one update by one process, whose micro-batches go forward and backward one after the other.

    Logits stay where they are until the next call, or, if they are to be held, until their backward pass has run.
    """

    def __init__(self) -> None:
        self._place = torch.empty(0)
        self.taken = False

    def logits(self, head: nn.Module, hidden: Tensor, *, held: bool) -> Tensor:
        """(T, H) hidden states to (T, V) logits; a head that isn't a plain product on a CPU is called as it is.

        The backward pass adds the weight's gradient to its ``.grad``; ``torch.autograd.grad`` doesn't see it.

        Args:
            held: no further call may overwrite the logits before the backward pass. False without gradient, and
                where the backward pass calls again.
        """
        plain = type(head) is nn.Linear and head.bias is None and head.weight.device.type == "cpu"
        if not plain or hidden.dtype != head.weight.dtype or torch.is_autocast_enabled("cpu"):
            called: Tensor = head(hidden)
            return called
        logits: Tensor = _Head.apply(hidden, head.weight, self, held)  # type: ignore[no-untyped-call]
        return logits

    def place(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Memory for logits."""
        rows, words = len(hidden), len(weight)
        if self.taken:
            return weight.new_empty(rows, words)
        if len(self._place) < rows * words or self._place.dtype != weight.dtype:
            self._place = torch.empty(0)  # the smaller one goes before the larger one comes
            self._place = weight.new_empty(rows * words)
        return self._place[: rows * words].view(rows, words)


class _Head(torch.autograd.Function):
    """Y = X W^T; with G the gradient of Y, W's is G^T X."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, memory: HeadMemory, held: bool) -> Tensor:
        logits = torch.mm(hidden, weight.t(), out=memory.place(hidden, weight))
        ctx.holds = held and not memory.taken
        memory.taken |= ctx.holds
        ctx.memory = memory
        ctx.save_for_backward(hidden)
        ctx.weight = weight  # itself: what is saved may come back as another tensor, whose .grad nobody asks for
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        (hidden,), weight = ctx.saved_tensors, ctx.weight
        by_hidden, by_weight = ctx.needs_input_grad[:2]
        if by_weight and weight.grad is None:
            weight.grad = torch.mm(gradient.t(), hidden)
        elif by_weight:
            weight.grad.addmm_(gradient.t(), hidden)
        onwards = torch.mm(gradient, weight) if by_hidden else None
        if ctx.holds:
            ctx.memory.taken = False
        return onwards, None, None, None
