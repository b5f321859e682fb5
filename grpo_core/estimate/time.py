"""Floating-point operations of a round's passes, and seconds from them: within a factor of two, no more."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.estimate.shapes import Shape
from grpo_core.policy.batching import Microbatch
from grpo_core.policy.logprobs import LogprobForm


@dataclass(frozen=True, slots=True)
class Rates:
    """What one device really does, not what its data sheet says."""

    flops: float  # a second, in large products
    bandwidth: float  # bytes a second, read
    launch: float  # seconds that a layer of a decoding step takes besides its arithmetic


def forward_flops(shape: Shape, batch: Microbatch, form: LogprobForm) -> float:
    """Of one forward pass of a micro-batch, its head included.

    Two for each weight and token (Kaplan et al. 2020, arXiv 2001.08361, section 2.1), and 4 * attention width for each
    pair of places that attention compares: under a mask all of them, those that it hides as well.
    """
    if form.shared_prefix:
        lengths = [row.tokens for row in batch.groups]
    else:
        lengths = [len(row.prompt_ids) + len(ids) - 1 for row in batch.groups for ids in row.completions]
    places = len(lengths) * max(lengths)
    by_parts = form.shared_prefix and form.by_parts
    pairs = sum(row.seen_pairs for row in batch.groups) if by_parts else places * max(lengths)
    return 2.0 * shape.body * places + attended(shape, pairs, 1) + 2.0 * shape.head * batch.tokens


def attended(shape: Shape, tokens: float, context: float) -> float:
    """Operations of attention of so many tokens to a context each."""
    return 4.0 * shape.layers * shape.attention * tokens * context


def update_seconds(
    microbatch_flops: Sequence[float],
    rates: Rates,
    *,
    ranks: int,
    passes_before: int,
    epochs: int,
    share_after: float,
    recomputed: bool,
    adapters_only: bool,
) -> tuple[float, float]:
    """Operations and seconds of a round's update.

    A backward pass takes two forward passes: gradients of the inputs and of the weights; one where the weights are
    frozen. Layers computed again take one more (Chen et al. 2016, arXiv 1604.06174).

    Args:
        microbatch_flops: forward operations of each micro-batch of one epoch.
        ranks: deal the micro-batches out; the last turn may leave some idle.
        passes_before: forward passes over everything before the first step.
        share_after: of the groups, how many are looked at once more after the last.
    """
    gradient = (1 if adapters_only else 2) + (1 if recomputed else 0)
    passes = passes_before + epochs * (1 + gradient) + share_after
    work = sum(microbatch_flops) * passes
    turns = -(-len(microbatch_flops) // ranks)
    return work, work / max(1, len(microbatch_flops)) * turns / rates.flops


def generation_seconds(
    shape: Shape,
    rates: Rates,
    *,
    batches: int,
    prompts: int,
    rows: int,
    prompt_tokens: float,
    completion_tokens: float,
    steps: int,
    weight_bytes: int,
    devices: int = 1,
) -> tuple[float, float]:
    """Operations of all batches, and seconds of them shared over so many engines.

    A step reads all weights and the whole cache once (Pope et al. 2022, arXiv 2211.05102): with few rows that takes
    longer than the arithmetic. Both are added, as if nothing overlapped.

    Args:
        prompts: in a batch.
        rows: completions decoded at a time.
        prompt_tokens, completion_tokens: mean.
        steps: tokens of the longest row of a batch.
    """
    each = rows / prompts
    prefill = 2.0 * (shape.body * prompt_tokens + shape.head) + attended(shape, prompt_tokens, prompt_tokens)
    decode = 2.0 * (shape.body + shape.head) * completion_tokens
    decode += attended(shape, completion_tokens, prompt_tokens + completion_tokens / 2)
    work = prompts * (prefill + each * decode)
    held = rows * (prompt_tokens + completion_tokens / 2) * shape.key_value_numbers * weight_bytes
    read = steps * shape.parameters * weight_bytes + completion_tokens * held
    seconds = work / rates.flops + read / rates.bandwidth + steps * shape.layers * rates.launch
    return work * batches, seconds * -(-batches // devices)
