"""Logprob and entropy of tokens from their logits, with a backward pass that makes its gradient where the logits lie.

``log_softmax`` holds a second tensor of the logits' size and makes a third for the gradient; on a CPU every pass over
them is a pass through main memory. Here both directions go through a few rows at a time, which stay in the cache, and
nothing of the size of the logits is made beside them.
"""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_BLOCK_LOGITS = 2**20
"""Logits of the rows that are gone through at a time: 4 MiB."""
_MOST_BLOCKS = 8
"""Of one call, so that starting kernels never costs more than their work: blocks of a large one are larger."""


def token_logprobs(
    logits: Tensor, targets: Tensor, want_entropy: bool, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """(T, V) float32 logits and (T,) targets to (T,) logprobs and (T,) entropy, in nats; zeros where it isn't wanted.

    The backward pass overwrites the logits, so that nothing else may need them, and it can run once.

    Args:
        entropy_gradient: let gradients flow through the entropy, too.
    """
    logprobs, entropy = _TokenLogprobs.apply(logits, targets, want_entropy, entropy_gradient)  # type: ignore[no-untyped-call]
    return logprobs, entropy


class _TokenLogprobs(torch.autograd.Function):
    """With p = softmax(x), H its entropy and t the target: d log p_t / dx = 1_t - p, dH / dx = -p (log p + H)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, want_entropy: bool, entropy_gradient: bool) -> Any:
        normaliser = logits.new_empty(len(logits))
        entropy = logits.new_zeros(len(logits))
        for rows in _blocks(logits):
            highest = logits[rows].amax(-1, keepdim=True)
            below = logits[rows] - highest
            if want_entropy:
                weights = below.exp()
                total = weights.sum(-1)
                entropy[rows] = total.log() - weights.mul_(below).sum(-1) / total
            else:
                total = below.exp_().sum(-1)
            normaliser[rows] = total.log() + highest.squeeze(-1)
        ctx.save_for_backward(logits, targets, normaliser, entropy)
        ctx.through_entropy = want_entropy and entropy_gradient
        if not ctx.through_entropy:
            ctx.mark_non_differentiable(entropy)
        return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normaliser, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        by_logprob, by_entropy = gradients
        logits, targets, normaliser, entropy = ctx.saved_tensors
        for rows in _blocks(logits):
            distribution = logits[rows].sub_(normaliser[rows].unsqueeze(-1))
            if ctx.through_entropy:
                slope = (distribution + entropy[rows].unsqueeze(-1)).mul_(-by_entropy[rows].unsqueeze(-1))
                slope.sub_(by_logprob[rows].unsqueeze(-1))
                distribution.exp_().mul_(slope)
            else:
                distribution.exp_().mul_(-by_logprob[rows].unsqueeze(-1))
        logits.scatter_add_(-1, targets.unsqueeze(-1), by_logprob.unsqueeze(-1))
        return logits, None, None, None


def _blocks(logits: Tensor) -> list[slice]:
    size = max(1, _BLOCK_LOGITS // logits.shape[-1], -(-len(logits) // _MOST_BLOCKS))
    blocks = [slice(start, start + size) for start in range(0, len(logits), size)]
    # A fake tensor has no numbers; what all of them take of memory, the first two and the last tell (estimate.trace).
    return blocks[:2] + blocks[2:][-1:] if isinstance(logits, FakeTensor) else blocks
