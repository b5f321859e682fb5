"""Rollouts by transformers: each prompt is prefilled once for its whole group, finished rows leave the batch.

A completion is decided by its own seed: token t takes the t-th uniform number of a counter-based generator (Philox,
Salmon et al. 2011) through the inverse of the sampling distribution's CDF. Nothing depends on the order of a stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer

from grpo_core.errors import UserError
from grpo_core.generation.engine import Completion, Request, SamplingParams
from grpo_core.schemas import Progress, no_progress

# Rows are dropped from the batch once this share of it has ended: each dropping copies the cache.
_DROP_SHARE = 1 / 8


class TransformersEngine:
    """The ``Engine`` over a causal model of transformers, on whatever device and in whatever precision it is."""

    name = "transformers"
    version = transformers.__version__

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._eos = eos_ids(model, tokenizer)

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress = no_progress
    ) -> list[list[Completion]]:
        """All requests in one batch; see ``Engine.generate``."""
        total = sum(len(request.seeds) for request in requests)
        if total == 0:
            return [[] for _ in requests]
        self._check_length(requests, sampling)
        with torch.inference_mode():
            rows = self._decode(requests, sampling, progress, total)
        completions = [self._completion(row) for row in rows]
        groups, start = [], 0
        for request in requests:
            groups.append(completions[start : start + len(request.seeds)])
            start += len(request.seeds)
        return groups

    def close(self) -> None:
        """Let go of the weights."""
        self._model = None

    def _check_length(self, requests: Sequence[Request], sampling: SamplingParams) -> None:
        limit = getattr(self._model.config, "max_position_embeddings", None)
        longest = max(len(request.prompt_ids) for request in requests)
        if limit is not None and longest + sampling.max_new_tokens > limit:
            raise UserError(
                f"A prompt of {longest} tokens and generation.max_new_tokens {sampling.max_new_tokens} exceed the model's "
                f"context of {limit}; lower generation.max_new_tokens or data.max_prompt_tokens."
            )

    def _decode(
        self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress, total: int
    ) -> list["_Row"]:
        device = self._model.device
        rows = [_Row([], []) for _ in range(total)]
        seeds = [seed for request in requests for seed in request.seeds]
        uniforms = torch.from_numpy(
            np.stack([np.random.Generator(np.random.Philox(key=s)).random(sampling.max_new_tokens) for s in seeds])
        )
        logits, cache, mask, positions = self._prefill(requests, sampling.max_new_tokens)
        alive = torch.arange(total)  # the row behind each place of the batch
        ended = torch.zeros(total, dtype=torch.bool)  # by place in the batch
        done = 0
        for step in range(sampling.max_new_tokens):
            tokens, logprobs = draw(logits, uniforms[alive, step].to(device), sampling)
            for place, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
                if not ended[place]:
                    row = rows[alive[place]]
                    row.token_ids.append(token)
                    row.logprobs.append(logprob)
                    if token in self._eos:
                        ended[place] = True
                        done += 1
            progress(done, total)
            if bool(ended.all()) or step + 1 == sampling.max_new_tokens:
                break
            if float(ended.float().mean()) >= _DROP_SHARE:
                keep = torch.nonzero(~ended).flatten()
                alive, ended = alive[keep], ended[keep]
                keep = keep.to(device)
                cache.batch_select_indices(keep)
                mask, positions, tokens = mask[keep], positions[keep], tokens[keep]
            mask = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
            positions = positions + 1
            logits = self._model(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=positions[:, None],
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
        progress(total, total)
        return rows

    def _prefill(
        self, requests: Sequence[Request], room: int
    ) -> tuple[torch.Tensor, DynamicCache, torch.Tensor, torch.Tensor]:
        """Each prompt once, left-padded; then everything repeated for the samples of its group."""
        device, width = self._model.device, max(len(request.prompt_ids) for request in requests)
        ids = torch.full((len(requests), width), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros((len(requests), width), dtype=torch.long)
        for number, request in enumerate(requests):
            ids[number, width - len(request.prompt_ids) :] = torch.tensor(list(request.prompt_ids))
            mask[number, width - len(request.prompt_ids) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        logits = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        ).logits[:, -1]
        counts = torch.tensor([len(request.seeds) for request in requests], device=device)
        repeat = torch.repeat_interleave(torch.arange(len(requests), device=device), counts)
        cache.batch_select_indices(repeat)
        _reserve(cache, room)
        return logits[repeat], cache, mask[repeat], positions[repeat, -1]

    def _completion(self, row: "_Row") -> Completion:
        stopped = row.token_ids[-1] in self._eos
        return Completion(
            token_ids=row.token_ids,
            logprobs=row.logprobs,
            text=self._tokenizer.decode(row.token_ids, skip_special_tokens=True),
            finish_reason="stop" if stopped else "length",
        )


@dataclass(slots=True)
class _Row:
    token_ids: list[int]
    logprobs: list[float]


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer with room for tokens to come, so that a step writes one token instead of copying all before it."""

    def __init__(self, layer: DynamicLayer, room: int) -> None:
        super().__init__()
        self.device, self.is_initialized = layer.keys.device, True
        self._used = layer.keys.shape[-2]
        shape = (*layer.keys.shape[:2], self._used + room)
        self._all_keys = layer.keys.new_empty((*shape, layer.keys.shape[-1]))
        self._all_values = layer.values.new_empty((*shape, layer.values.shape[-1]))
        self._all_keys[:, :, : self._used] = layer.keys
        self._all_values[:, :, : self._used] = layer.values
        self._show()

    def _show(self) -> None:
        self.keys, self.values = self._all_keys[:, :, : self._used], self._all_values[:, :, : self._used]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self._used + key_states.shape[-2]
        self._all_keys[:, :, self._used : end] = key_states
        self._all_values[:, :, self._used : end] = value_states
        self._used = end
        self._show()
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._all_keys, self._all_values = self._all_keys[indices], self._all_values[indices]
        self._show()


def _reserve(cache: DynamicCache, room: int) -> None:
    # Sliding-window and other special layers keep their own way of growing.
    cache.layers = [_RoomyLayer(layer, room) if type(layer) is DynamicLayer else layer for layer in cache.layers]


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a completion: of the generation config, the model's config and the tokenizer."""
    found: set[int] = set()
    for holder in (model.generation_config, model.config, tokenizer):
        value = getattr(holder, "eos_token_id", None)
        found.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return frozenset(found)


def draw(logits: torch.Tensor, uniforms: torch.Tensor, sampling: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row by inverse CDF, with its logprob under the distribution that it was drawn from.

    Args:
        logits: [rows, vocabulary].
        uniforms: [rows], float64 in [0, 1).

    Returns:
        Token ids [rows] and logprobs [rows] in float32. Greedy when the temperature is 0, then logprobs at temperature 1.
    """
    logits = logits.float()
    if sampling.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = logprobs.argmax(dim=-1)
    else:
        logprobs = torch.log_softmax(_truncated(logits / sampling.temperature, sampling), dim=-1)
        cdf = torch.cumsum(logprobs.exp().double(), dim=-1)
        total = cdf[:, -1:].contiguous()
        chosen = torch.searchsorted(cdf, uniforms[:, None] * total, right=True)
        # Rounding may carry u * total up to the total itself: the last token that has any probability is meant then.
        chosen = torch.minimum(chosen, torch.searchsorted(cdf, total)).flatten()
    return chosen, logprobs.gather(1, chosen[:, None]).flatten()


def _truncated(scaled: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Top-k, then top-p among what is left, as logits with -inf outside. Ties at the border of top-k stay in."""
    if 0 < sampling.top_k < scaled.shape[-1]:
        border = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < border, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        before = torch.softmax(ordered, dim=-1).cumsum(dim=-1) - torch.softmax(ordered, dim=-1)
        # A token is kept while the probability before it is below p; the likeliest always is.
        outside = torch.zeros_like(scaled, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        scaled = scaled.masked_fill(outside, -torch.inf)
    return scaled
