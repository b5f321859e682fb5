"""One batch in the padded form of trl and verl and in our flat one, and our loss on it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.losses import LossInputs, denominator, loss_sums
from grpo_core.policy.segments import Segments

MAX_NEW_TOKENS = 11


@dataclass
class Batch:
    """Each (B, T) but for the advantages (B,); whatever stands in the padding counts nowhere."""

    logprobs: Tensor
    old: Tensor
    reference: Tensor
    sampler: Tensor
    entropy: Tensor
    advantages: Tensor
    mask: Tensor = field(repr=False)


def random_batch(seed: int = 0) -> Batch:
    """Six sequences of 1 to 9 tokens; ratios far beyond the usual bounds on both sides of either sign."""
    draw = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(6, 9, generator=draw, dtype=torch.float64)

    old = -2 + noise(0.5)
    lengths = torch.tensor([3, 9, 1, 5, 7, 2])
    return Batch(
        logprobs=old + noise(0.4),
        old=old,
        reference=old + noise(0.6),
        sampler=old + noise(0.3),
        entropy=noise(1).abs(),
        advantages=torch.tensor([1.3, -0.7, -1.1, 0.4, 0.0, 0.9], dtype=torch.float64),
        mask=(torch.arange(9) < lengths[:, None]).long(),
    )


def hand_batch(ratios: list[list[float]], advantages: list[float], **ratios_of: list[list[float]]) -> Batch:
    """From ratios to the old policy, whose logprobs are all -3; others are ratios to the old policy, too."""
    width = max(map(len, ratios))

    def padded(values: list[list[float]]) -> Tensor:
        return torch.tensor([row + [1.0] * (width - len(row)) for row in values], dtype=torch.float64)

    same = [[1.0] * len(row) for row in ratios]
    return Batch(
        logprobs=padded(ratios).log() - 3,
        old=torch.full((len(ratios), width), -3.0, dtype=torch.float64),
        reference=padded(ratios_of.get("reference", same)).log() - 3,
        sampler=padded(ratios_of.get("sampler", same)).log() - 3,
        entropy=padded(ratios_of.get("entropy", same)),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        mask=torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ratios]),
    )


def ours(batch: Batch, selected: Tensor | None = None, with_entropy: bool = False, **config: Any) -> list[Tensor]:
    """Our loss of the batch as a whole step, and its gradient by the padded logprobs or entropies."""
    settings = UpdateConfig(**{"kl_coef": 0.0} | config)
    kept = batch.mask.bool()
    leaves = batch.logprobs.clone().requires_grad_(), batch.entropy.clone().requires_grad_()
    inputs = LossInputs(
        segments=Segments.of(batch.mask.sum(1)),
        logprobs=leaves[0][kept],
        old_logprobs=batch.old[kept],
        advantages=batch.advantages[:, None].expand_as(batch.old)[kept],
        entropy=leaves[1][kept],
        reference_logprobs=batch.reference[kept] if settings.kl_coef > 0 else None,
        sampler_logprobs=batch.sampler[kept] if settings.old_logprobs == "trainer" else None,
        selected=None if selected is None else selected[kept],
    )
    sums = loss_sums(inputs, settings, settings.clip_low, settings.clip_high)
    divisor = denominator(settings, tokens=int(kept.sum()), sequences=len(batch.mask), max_new_tokens=MAX_NEW_TOKENS)
    loss = sums.loss / divisor
    gradients = torch.autograd.grad(loss, leaves[1] if with_entropy else leaves[0])
    return [loss.detach(), *gradients]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
