"""A model's decoder layers, and how they are computed again in the backward pass instead of held."""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_core.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decoder_layers(model: "PreTrainedModel") -> list[nn.Module]:
    """The outermost layers that transformers itself would compute again, in order.

    Raises:
        UserError: it knows of none.
    """
    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and module not in inner:
            found.append(module)
            inner.update(module.modules())
    if not found:
        raise UserError(
            f"transformers names no layers of {type(model).__name__} that could be sharded or computed again; set "
            "update.ranks to 1 and update.gradient_checkpointing to false."
        )
    return found


def recompute_layers(model: "PreTrainedModel") -> None:
    """Hold the inputs of decoder layers alone and compute the layers again in the backward pass.

    transformers' own switch acts in training mode only, in which there is dropout. Names of parameters stay as they
    are, and so do gradients: the same kernels see the same numbers. Call it before the model is sharded or after.
    """
    for layer in decoder_layers(model):
        layer.forward = partial(_again_in_backward, layer.forward)  # below FSDP's hooks, which gather the weights


def _again_in_backward(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
