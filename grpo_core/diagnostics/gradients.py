"""Where in the model the gradient is: its norm by embeddings, thirds of the layers, and head."""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

PARTS = ("embeddings", "early", "middle", "late", "head")


def parts_of_model(names: list[str]) -> list[str]:
    """The part of ``PARTS`` that each parameter belongs to; empty when none stands in a numbered layer.

    The first number in a name is its layer's. What comes before the first layer in the model's order is embeddings,
    what comes after it without a number is head, the final norm included; a head tied to the embeddings counts there.

    Args:
        names: of all parameters, in the model's order.
    """
    layers = [re.search(r"(?:^|\.)(\d+)\.", name) for name in names]
    numbers = [int(found[1]) for found in layers if found]
    if not numbers:
        return []
    count, seen, parts = max(numbers) + 1, False, []
    for found in layers:
        if found:
            seen = True
            parts.append(("early", "middle", "late")[3 * int(found[1]) // count])
        else:
            parts.append("head" if seen else "embeddings")
    return parts


def gradient_norms(parameters: Mapping[str, Tensor]) -> dict[str, float]:
    """L2 norm of ``.grad`` by part of the model; a part without gradients is left out.

    Reads every gradient once more than the clipping does, which is nothing beside the backward pass.

    Args:
        parameters: trainable ones by name, in the model's order.
    """
    parts = parts_of_model(list(parameters))
    grads: dict[str, list[Tensor]] = {}
    for part, weight in zip(parts, parameters.values(), strict=False):
        if weight.grad is not None:
            grads.setdefault(part, []).append(weight.grad)
    return {part: float(_norm(grads[part])) for part in PARTS if part in grads}


def clip_gradient(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale ``.grad`` down to a global L2 norm, over all ranks where it is sharded; returns what it was."""
    weights = list(parameters)
    norm = _norm([weight.grad for weight in weights if weight.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(weights, max_norm, norm)
    return float(norm)


def _norm(grads: list[Tensor]) -> Tensor:
    found = torch.nn.utils.get_total_norm(grads)
    return found.full_tensor() if isinstance(found, DTensor) else found
