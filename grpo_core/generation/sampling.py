"""One token a row from logits: inverse CDF of the sampling distribution at a uniform number that is given."""

import torch

from grpo_core.generation.engine import SamplingParams

# The CDF is searched in two steps, first among blocks of so many tokens: half the time of one cumsum over a vocabulary.
_BLOCK = 256


def draw(logits: torch.Tensor, uniforms: torch.Tensor, sampling: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row by inverse CDF, with its logprob under the distribution that it was drawn from.

    A row that has a NaN or no finite logit gives some token and a logprob that is not finite.

    Args:
        logits: [rows, vocabulary], any floating dtype.
        uniforms: [rows], float64 in [0, 1).

    Returns:
        Token ids [rows] and logprobs [rows] in float32. Temperature 0 is greedy, with logprobs at temperature 1.
    """
    logits = logits.float()
    if sampling.temperature == 0:
        best = logits.argmax(dim=-1, keepdim=True)
        return best.flatten(), torch.log_softmax(logits, dim=-1).gather(1, best).flatten()
    scaled = truncated(logits / sampling.temperature, sampling)
    top = scaled.amax(dim=-1, keepdim=True)
    weights = torch.nn.functional.pad((scaled - top).exp(), (0, -scaled.shape[-1] % _BLOCK))
    weights = weights.view(weights.shape[0], -1, _BLOCK)
    blocks = weights.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    total = blocks[:, -1:]
    target = uniforms[:, None] * total
    block = _search(blocks, target)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = weights.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(dim=-1)
    chosen = block * _BLOCK + _search(inside, target - before)
    # Only a NaN leads into the padding.
    chosen = chosen.clamp(max=scaled.shape[-1] - 1)
    logprobs = (scaled.gather(1, chosen) - top).double() - total.log()
    return chosen.flatten(), logprobs.float().flatten()


def _search(cdf: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first place whose CDF exceeds the target [rows, 1]: it has weight, for the CDF has just risen."""
    place = torch.searchsorted(cdf, target, right=True)
    # Rounding may carry the target up to the total; the last place that has any weight is meant then.
    last = torch.searchsorted(cdf, cdf[:, -1:].contiguous())
    return torch.minimum(place, last).clamp(max=cdf.shape[-1] - 1)


def truncated(scaled: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Top-k, then top-p among what is left, as logits [rows, vocabulary] with -inf outside.

    Ties at the border of top-k stay in, as in transformers and vLLM. A token is in the nucleus while the probability of
    the likelier ones together is below p (Holtzman et al. 2020); the likeliest always is.
    """
    if 0 < sampling.top_k < scaled.shape[-1]:
        border = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < border, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        probabilities = torch.softmax(ordered.double(), dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        outside = torch.zeros_like(scaled, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        scaled = scaled.masked_fill(outside, -torch.inf)
    return scaled
