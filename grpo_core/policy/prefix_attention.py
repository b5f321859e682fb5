"""Attention over rows ``[prompt | c1 | ... | cG]`` that never looks at a pair of tokens which the row hides (CPU).

A dense mask makes all L^2 pairs of a row and throws most of them away. Here the prompt attends to itself; completions
attend to the prompt, all at once and without a mask; each completion attends to itself. The last two are joined by
their log-sum-exps, exactly, as FlashAttention joins its blocks (Dao et al. 2022, arXiv:2205.14135) and Hydragen the
shared prefix of a batch that is generated (Juravsky et al. 2024, arXiv:2402.05099); the gradient of each part then
needs nothing but the joint log-sum-exp.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "shared_prefix"
"""Of this attention among those of transformers; without rows to split it is sdpa."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class SplitRow:
    """Tokens of a row's parts, one behind the other: the prompt, each completion, then padding."""

    prompt: int
    completions: Sequence[int]

    @property
    def end(self) -> int:
        """Tokens without padding."""
        return self.prompt + sum(self.completions)

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """First token and end of each completion that has any."""
        for start, end in pairwise(accumulate(self.completions, initial=self.prompt)):
            if start < end:
                yield start, end


class _SplitAttention(torch.autograd.Function):
    """(B, heads, L, D) queries, keys and values of B rows to outputs of the same shape; zeros at padding."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: Sequence[SplitRow], scale: float | None
    ) -> Tensor:
        batch, heads, length, size = query.shape
        out = query.new_empty(batch, length, heads, size).transpose(1, 2)  # as the projection behind it wants it
        normalisers = query.new_empty(batch, heads, length, dtype=torch.float32)
        for number, row in enumerate(rows):
            q, k, v, o, n = (each[number : number + 1] for each in (query, key, value, out, normalisers))
            prompt, rest = slice(0, row.prompt), slice(row.prompt, row.end)
            o[:, :, prompt], n[:, :, prompt] = _forward(*_cut(prompt, q, k, v), 0.0, True, scale=scale)
            for span in starmap(slice, row.spans):
                o[:, :, span], n[:, :, span] = _forward(*_cut(span, q, k, v), 0.0, True, scale=scale)
            if row.prompt < row.end:
                seen, normaliser = _forward(q[:, :, rest], *_cut(prompt, k, v), 0.0, False, scale=scale)
                # Softmax over both parts: each part's share is what its exponentials are of the sum of all.
                share = torch.sigmoid(normaliser - n[:, :, rest])
                o[:, :, rest].lerp_(seen, share.to(seen.dtype).unsqueeze(-1))
                n[:, :, rest] = torch.logaddexp(normaliser, n[:, :, rest])
            o[:, :, row.end :] = 0
        ctx.save_for_backward(query, key, value, out, normalisers)
        ctx.rows, ctx.scale = rows, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, normalisers = ctx.saved_tensors
        found = [torch.empty_like(each) for each in (query, key, value)]
        for number, row in enumerate(ctx.rows):
            g, q, k, v, o, n, *totals = (
                each[number : number + 1] for each in (gradient, query, key, value, out, normalisers, *found)
            )
            prompt, rest = slice(0, row.prompt), slice(row.prompt, row.end)
            for span in (prompt, *starmap(slice, row.spans)):
                own = _backward(*_cut(span, g, q, k, v, o, n), 0.0, True, scale=ctx.scale)
                for total, part in zip(totals, own, strict=True):
                    total[:, :, span] = part
            if row.prompt < row.end:
                parts = [*_cut(rest, g, q), *_cut(prompt, k, v), *_cut(rest, o, n)]
                seen = _backward(*parts, 0.0, False, scale=ctx.scale)
                for total, span, part in zip(totals, (rest, prompt, prompt), seen, strict=True):
                    total[:, :, span] += part
            for total in totals:
                total[:, :, row.end :] = 0
        return (*found, None, None)


def _cut(span: slice, *tensors: Tensor) -> list[Tensor]:
    """Their tokens of a span; tokens are the third dimension."""
    return [tensor[:, :, span] for tensor in tensors]


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    rows: Sequence[SplitRow] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer; what it can't do here it refuses, for ``inspect_model`` to see."""
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if rows is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)
        return output, None
    for name in ("position_bias", "softcap", "s_aux"):
        if options.get(name) is not None:
            raise ValueError(f"attention by parts has no {name}")
    if dropout or query.shape[-1] != value.shape[-1]:
        raise ValueError("attention by parts has no dropout, and values are as long as queries")
    kind, times = query.device.type, query.shape[1] // key.shape[1]
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype  # as sdpa's
    parts = (part.to(dtype) for part in (query, repeat_kv(key, times), repeat_kv(value, times)))
    found: Tensor = _SplitAttention.apply(*parts, rows, scaling)  # type: ignore[no-untyped-call]
    return found.transpose(1, 2).contiguous(), None


def split_attention(model: "PreTrainedModel", rows: Sequence[SplitRow]) -> dict[str, Any]:
    """Arguments of the model's forward pass with which it attends by parts; sets the model's kind of attention to it.

    A gradient checkpoint keeps the arguments, but not the model's settings, so these stay.

    Args:
        rows: of the batch, one each.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if model.config._attn_implementation != NAME:
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
    # A mask of four dimensions is handed on as it is, where none would be made from the positions.
    return {"attention_mask": torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device), "rows": rows}
