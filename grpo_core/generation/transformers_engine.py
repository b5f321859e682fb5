"""Rollouts by transformers: each prompt is prefilled once for its whole group, finished rows leave the batch.

A completion is decided by its own seed: token t takes the t-th uniform number of a counter-based generator (Philox,
Salmon et al. 2011) through the inverse of the sampling distribution's CDF. Nothing depends on the order of a stream.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from transformers.cache_utils import DynamicCache

from grpo_core.canary import probe_logprobs
from grpo_core.errors import UserError
from grpo_core.generation.batches import batches
from grpo_core.generation.cache import spread
from grpo_core.generation.engine import (
    CACHE_TOKENS,
    NOT_FINITE,
    Completion,
    Request,
    SamplingParams,
    check_length,
    eos_ids,
)
from grpo_core.generation.sampling import draw
from grpo_core.schemas import Progress, no_progress, shifted

# Rows are dropped from the batch once this share of it has ended: each dropping copies the cache.
_DROP_SHARE = 1 / 8


class TransformersEngine:
    """The ``Engine`` over a causal model of transformers, on whatever device and in whatever precision it is."""

    name = "transformers"
    version = transformers.__version__

    def __init__(self, model: Any, tokenizer: Any, cache_tokens: int = CACHE_TOKENS) -> None:
        """Take a model in eval mode; ``cache_tokens`` is the budget of one batch (batches.py)."""
        self._cache_tokens = cache_tokens
        self._model = model
        self._tokenizer = tokenizer
        self._eos = eos_ids(model.generation_config, model.config, tokenizer)
        self.precision = str(model.dtype).removeprefix("torch.")

    def probe(self, ids: Sequence[int]) -> list[float]:
        """See ``Engine.probe``."""
        return probe_logprobs(self._model, ids)

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress = no_progress
    ) -> list[list[Completion]]:
        """In as few batches as the budget of cached tokens allows; see ``Engine.generate``."""
        check_length(requests, sampling, getattr(self._model.config, "max_position_embeddings", None))
        total = sum(len(request.seeds) for request in requests)
        found: list[Completion] = []
        with torch.inference_mode():
            for batch in batches(requests, sampling.max_new_tokens, self._cache_tokens):
                found += self._decode(batch, sampling, shifted(progress, len(found), total))
        completions = iter(found)
        return [[next(completions) for _ in request.seeds] for request in requests]

    def close(self) -> None:
        """Let go of the weights."""
        self._model = None

    def _decode(self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress) -> list[Completion]:
        """The completions of all groups of one batch, one after the other.

        Shapes: N completions, R rows still in the batch, ``rows_R`` the completion behind each of them.
        """
        device, steps = self._model.device, sampling.max_new_tokens
        uniforms_NS = _uniforms([seed for request in requests for seed in request.seeds], steps).to(device)
        total = len(uniforms_NS)
        tokens_NS = torch.zeros((total, steps), dtype=torch.long, device=device)
        logprobs_NS = torch.zeros((total, steps), dtype=torch.float32, device=device)
        lengths_N = torch.full((total,), steps, device=device)
        stopped_N = torch.zeros(total, dtype=torch.bool, device=device)
        eos = torch.tensor(sorted(self._eos), dtype=torch.long, device=device)
        rows_R = torch.arange(total, device=device)
        logits, cache, mask, positions_R = self._prefill(requests)
        done = 0
        for step in range(steps):
            tokens_R, logprobs_R = draw(logits, uniforms_NS[rows_R, step], sampling)
            tokens_NS[rows_R, step] = tokens_R  # a row that has ended writes beyond its length, which nobody reads
            logprobs_NS[rows_R, step] = logprobs_R
            ending_R = torch.isin(tokens_R, eos) & ~stopped_N[rows_R]
            lengths_N[rows_R[ending_R]] = step + 1
            stopped_N[rows_R[ending_R]] = True
            ended, broken = torch.stack([stopped_N.sum(), (~logprobs_R.isfinite()).sum()]).tolist()
            if broken:
                raise UserError(NOT_FINITE)
            if ended > done:
                done = ended
                progress(done, total)
            if ended == total or step + 1 == steps:
                break
            alive_R = ~stopped_N[rows_R]
            if ended - (total - len(rows_R)) >= _DROP_SHARE * len(rows_R):
                keep = alive_R.nonzero().flatten()
                cache.batch_select_indices(keep)
                rows_R, tokens_R, positions_R, mask = rows_R[keep], tokens_R[keep], positions_R[keep], mask[keep]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            positions_R = positions_R + 1
            logits = self._forward(tokens_R[:, None], mask, positions_R[:, None], cache)
        if done < total:
            progress(total, total)
        columns = (tokens_NS.cpu(), logprobs_NS.cpu(), lengths_N.tolist(), stopped_N.tolist())
        return [
            self._completion(ids[:n].tolist(), lps[:n].tolist(), stop)
            for ids, lps, n, stop in zip(*columns, strict=True)
        ]

    def _prefill(self, requests: Sequence[Request]) -> tuple[torch.Tensor, DynamicCache, torch.Tensor, torch.Tensor]:
        """Each prompt once, left-padded; then everything repeated for the completions of its group.

        Returns:
            Of every completion: logits of its first token [N, V], the cache, the mask [N, T], the last position [N].
        """
        device, width = self._model.device, max(len(request.prompt_ids) for request in requests)
        ids = torch.zeros((len(requests), width), dtype=torch.long)  # any id pads: the mask hides it
        mask = torch.zeros((len(requests), width), dtype=torch.long)
        for number, request in enumerate(requests):
            ids[number, width - len(request.prompt_ids) :] = torch.tensor(list(request.prompt_ids))
            mask[number, width - len(request.prompt_ids) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        logits = self._forward(ids, mask, positions, cache)
        counts = torch.tensor([len(request.seeds) for request in requests], device=device)
        repeat = torch.repeat_interleave(torch.arange(len(requests), device=device), counts)
        spread(cache, repeat)
        return logits[repeat], cache, mask[repeat], positions[repeat, -1]

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Logits [rows, vocabulary] after the last of the ids; the cache takes them in."""
        output = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _completion(self, token_ids: list[int], logprobs: list[float], stopped: bool) -> Completion:
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            text=self._tokenizer.decode(token_ids, skip_special_tokens=True),
            finish_reason="stop" if stopped else "length",
        )


def _uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """[seeds, count] in float64 in [0, 1); each row by its own seed alone, and a prefix of any longer one."""
    return torch.from_numpy(np.stack([np.random.Generator(np.random.Philox(key=seed)).random(count) for seed in seeds]))
