"""A model's layers in the backward pass: what is computed again instead of held, gradients of looked-up rows."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
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


@contextmanager
def recomputed_layers(model: "PreTrainedModel") -> Iterator[None]:
    """Inside, the inputs of decoder layers alone are held, and the backward pass computes the layers again.

    transformers' own switch acts in training mode only, in which there is dropout. Names of parameters stay as they
    are, and so do gradients: the same kernels see the same numbers. A sharded model is gathered for it once more.
    """
    layers = decoder_layers(model)
    for layer in layers:
        layer.forward = partial(_again_in_backward, layer.forward)  # below FSDP's hooks, which gather the weights
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@contextmanager
def recomputed_products(model: "PreTrainedModel") -> Iterator[None]:
    """Inside, a gated feed-forward block on a CPU holds gate and up, and makes act(gate) * up again for its gradient.

    That is a quarter of what a layer holds, for two passes over it and no matrix product: the backward pass computes
    no further than it needs. A GPU, where such passes are not lost beside the products, has ``recomputed_layers``.
    """
    on_cpu = all(weight.device.type == "cpu" for weight in model.parameters())
    gated = [m for m in model.modules() if on_cpu and not isinstance(model, FSDPModule) and _is_gated(m)]
    for block in gated:
        block.forward = partial(_gated, block)
    try:
        yield
    finally:
        for block in gated:
            del block.forward


_GATED = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"
"""As transformers writes it for Llama, Mistral, Qwen and Gemma."""


def _is_gated(module: nn.Module) -> bool:
    # By what it says it does: names alone are shared by blocks that scale or clamp between the products.
    if not hasattr(module, "down_proj") or "forward" in vars(module):
        return False
    try:
        lines = inspect.getsource(type(module).forward).splitlines()[1:]
    except (OSError, TypeError):  # compiled, or made while running: it doesn't say
        return False
    return [line.strip() for line in lines] in ([f"down_proj = {_GATED}", "return down_proj"], [f"return {_GATED}"])


def _gated(block: Any, x: torch.Tensor) -> torch.Tensor:
    def down(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = block.down_proj(block.act_fn(gate) * up)
        return found

    made: torch.Tensor = _again_in_backward(down, block.gate_proj(x), block.up_proj(x))
    return made


@contextmanager
def gradient_of_rows(model: "PreTrainedModel") -> Iterator[None]:
    """Inside, a tied embedding's gradient is that of the rows looked up, added to the head's, which is whole.

    A whole one of its own would be filled with zeros and added up in every backward pass, which at 50,000 words costs
    as much as several layers. On a CPU alone, where rows are added up in their order, and by one process alone.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    fits = (
        isinstance(embedding, nn.Embedding)
        and head is not None
        and head.weight is embedding.weight
        and embedding.weight.requires_grad
        and embedding.weight.device.type == "cpu"
        and not isinstance(model, FSDPModule)
    )
    if not fits:
        yield
        return
    before, embedding.sparse = embedding.sparse, True
    try:
        yield
    finally:
        embedding.sparse = before


def _again_in_backward(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
