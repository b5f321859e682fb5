"""Which completions are decoded together: as many as a budget of cached tokens allows, always in the same batches."""

from collections.abc import Sequence
from dataclasses import replace

from grpo_core.generation.engine import Request


def batches(requests: Sequence[Request], new_tokens: int, budget: int) -> list[list[Request]]:
    """Cut requests into lists of which each needs no more than ``budget`` tokens of cache, in order.

    A batch's cache holds rows * (its longest prompt + ``new_tokens``) tokens. Groups stay whole while they fit, so that
    their prompt is computed once; one that doesn't is cut into parts. A single row over the budget is a batch, too.
    """
    found: list[list[Request]] = []
    rows, longest = 0, 0
    for request in [part for whole in requests for part in _parts(whole, new_tokens, budget)]:
        width = max(longest, len(request.prompt_ids))
        if not found or (rows + len(request.seeds)) * (width + new_tokens) > budget:
            found.append([])
            rows, width = 0, len(request.prompt_ids)
        found[-1].append(request)
        rows, longest = rows + len(request.seeds), width
    return found


def _parts(request: Request, new_tokens: int, budget: int) -> list[Request]:
    size = max(1, budget // (len(request.prompt_ids) + new_tokens))
    seeds = request.seeds
    return [replace(request, seeds=seeds[start : start + size]) for start in range(0, len(seeds), size)]
