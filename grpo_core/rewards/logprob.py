"""The ``logprob`` reward: quality as a reference model sees it."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from grpo_core.errors import UserError
from grpo_core.rewards.reward import Reward
from grpo_core.rewards.scoring_model import ScoringModelConfig, as_conversation, batches, free_memory
from grpo_core.rewards.verdict import Sample, Score, Verdict

LOGPROB_VERSION = 1


class LogprobConfig(ScoringModelConfig):
    """Options of ``logprob``."""

    model: str | None = Field(
        None, min_length=1, description="As model.name; null: the policy that the run started from."
    )
    scale: Literal["logprob", "probability"] = Field(
        "logprob",
        description="The mean itself, at most 0, or its exponential, the inverse of the perplexity, in (0, 1].",
    )


def logprob_reward(config: LogprobConfig, reference: Path | None) -> Reward:
    """R = (1 / T) sum over t of log p_ref(y_t | x, y_<t), in nats, of the T completion tokens at temperature 1.

    The run's own starting policy is given the very ids that were sampled. A model of another name is given the texts:
    the prompt in its chat template, the response, and its end token where generation ended by itself. It is loaded at
    the first call.

    Args:
        reference: folder of the run's starting policy; needed where ``config.model`` is null.
    """
    loaded: list[tuple[Any, Any]] = []

    def score(samples: Sequence[Sample]) -> list[Score]:
        if not loaded:
            loaded.append(_load(config, reference))
        model, tokenizer = loaded[0]
        started = time.perf_counter()
        pairs = [_ids(tokenizer, sample, own=config.model is None) for sample in samples]
        means = mean_logprobs(model, pairs, config.batch_tokens)
        seconds = (time.perf_counter() - started) / max(1, len(samples))
        values = means if config.scale == "logprob" else [None if m is None else math.exp(m) for m in means]
        return [_score(value, seconds) for value in values]

    def close() -> None:
        loaded.clear()
        free_memory()

    return Reward(score, close)


def mean_logprobs(
    model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_tokens: int
) -> list[float | None]:
    """The mean logprob of each completion's tokens under a causal model; None for a completion without tokens.

    Args:
        pairs: prompt ids (at least one) and completion ids.
    """
    import torch  # here, so that whoever scores without a model does not wait for it

    means: list[float | None] = [None] * len(pairs)
    filled = [index for index, (prompt, completion) in enumerate(pairs) if prompt and completion]
    lengths = [len(pairs[index][0]) + len(pairs[index][1]) for index in filled]
    for batch in batches(lengths, batch_tokens):
        rows = [filled[place] for place in batch]
        width = max(lengths[place] for place in batch)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(rows):
            whole = [*pairs[index][0], *pairs[index][1]]
            ids[row, : len(whole)], mask[row, : len(whole)] = torch.tensor(whole), 1
        with torch.inference_mode():
            logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False).logits
        for row, index in enumerate(rows):
            start, end = len(pairs[index][0]), len(pairs[index][0]) + len(pairs[index][1])
            # The place before a token predicts it.
            distribution = torch.log_softmax(logits[row, start - 1 : end - 1].float(), dim=-1)
            targets = ids[row, start:end].to(distribution.device)
            means[index] = float(distribution.gather(-1, targets.unsqueeze(-1)).double().mean())
    return means


def _load(config: LogprobConfig, reference: Path | None) -> tuple[Any, Any]:
    from grpo_core.models import (
        ModelConfig,
        compute_dtype,
        load_policy,
        load_source_model,
        load_tokenizer,
        resolve_device,
    )

    place = ModelConfig(name=config.model or "tiny", device=config.device, dtype=config.dtype)
    device = resolve_device(place)
    if config.model is None:
        if reference is None:
            raise UserError("The reward logprob has no run whose starting policy it could ask; give it options.model.")
        return load_policy(reference, device, compute_dtype(place, device)), load_tokenizer(reference)
    model, tokenizer = load_source_model(place, seed=0)
    return model.to(device, compute_dtype(place, device)), tokenizer


def _ids(tokenizer: Any, sample: Sample, *, own: bool) -> tuple[Sequence[int], Sequence[int]]:
    if own and sample.prompt_ids:
        return sample.prompt_ids, sample.completion_ids
    prompt, response = as_conversation(tokenizer, sample)
    # A chat template writes its special tokens itself.
    prompt_ids = tokenizer(prompt, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    ended = sample.finish_reason == "stop" and tokenizer.eos_token_id is not None
    return prompt_ids or [tokenizer.bos_token_id or tokenizer.eos_token_id], [
        *ids,
        tokenizer.eos_token_id,
    ] if ended else ids


def _score(value: float | None, seconds: float) -> Score:
    if value is None:
        return Score(Verdict.MISSING, None, detail="the response has no tokens", seconds=seconds)
    return Score(Verdict.OK, value, {"logprob": value}, seconds=seconds)
