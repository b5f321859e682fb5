"""Bytes that the forward and backward pass of a micro-batch holds, found by running the real code on fake tensors.

A fake tensor (PyTorch's FakeTensorMode) has a shape, a dtype and a device, and no bytes. The passes of the update run
on it as they are, kernels' choices included; a dispatch mode counts each storage from its making to its end. So the
count follows the model's architecture and this project's code without a formula for either.
"""

import copy
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

from grpo_core.estimate.shapes import SMALL_BYTES, meta_model
from grpo_core.policy.batching import Microbatch
from grpo_core.policy.head import HeadMemory
from grpo_core.policy.layers import recomputed_layers, recomputed_products
from grpo_core.policy.logprobs import LogprobForm, completion_logprobs
from grpo_core.policy.lora import add_adapter
from grpo_core.policy.lora_config import LoraConfig

_DEPTHS = (2, 3)


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one micro-batch beside weights, moments, and gradients of earlier micro-batches."""

    activations: int  # when the last layer's output is there
    most: int  # at the highest point of both passes
    small: int  # thereof in storages of less than SMALL_BYTES
    gradients: int | None  # thereof of weights; None: they lie there from earlier micro-batches of the step


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest point of one pass."""

    most: int
    small: int
    gradients: int


def trace_microbatch(
    model_config: Any,
    batch: Microbatch,
    form: LogprobForm,
    *,
    temperature: float = 1.0,
    autocast: bool = False,
    dtype: torch.dtype = torch.float32,
    recomputed: bool = False,
    as_on_cpu: bool = True,
    lora: LoraConfig | None = None,
    accumulates: bool = True,
) -> Held:
    """What one micro-batch holds. Models of more layers than three are traced with two and with three.

    All layers of a model take the same bytes, so what is held grows by the same amount with each.

    Args:
        model_config: of transformers.
        autocast: compute in bfloat16 under autocast, copies of the weights included.
        dtype: of the weights; with autocast an adapter's are float32.
        recomputed: layers are computed again in the backward pass.
        as_on_cpu: with what an update by one process on a CPU does for its memory (head.py, layers.py).
        lora: adapters to train instead of the weights.
        accumulates: there are earlier micro-batches in the step, and so gradients.

    Raises:
        Exception: whatever an architecture raises that looks at the values of its tensors.
    """
    layers = model_config.get_text_config().num_hidden_layers
    depths = _DEPTHS if layers > _DEPTHS[1] else (layers,)
    found = []
    for depth in depths:
        model = meta_model(_cut(model_config, depth), dtype)
        if lora is not None:
            add_adapter(model, lora)
        with FakeTensorMode(allow_non_fake_inputs=True):
            _make_fake(model, torch.float32 if autocast else dtype)
            options = (temperature, autocast, accumulates, recomputed, as_on_cpu)
            found.append(count_bytes(model, batch, form, *options))
    first, last, more = found[0], found[-1], layers - depths[-1]
    # Each pass by itself: which of the two is the higher may change on the way from few layers to many.
    most, small, gradients = max(
        (
            peak.most + more * (peak.most - before.most),
            peak.small + more * (peak.small - before.small),
            peak.gradients + more * (peak.gradients - before.gradients),
        )
        for peak, before in ((last.forward, first.forward), (last.backward, first.backward))
    )
    return Held(last.trunk + more * (last.trunk - first.trunk), most, small, None if accumulates else gradients)


def _cut(model_config: Any, depth: int) -> Any:
    cut = copy.deepcopy(model_config)
    text = cut.get_text_config()
    text.num_hidden_layers = depth
    if getattr(text, "layer_types", None):
        text.layer_types = list(text.layer_types)[:depth]
    return cut


def count_bytes(
    model: Any,
    batch: Microbatch,
    form: LogprobForm,
    temperature: float = 1.0,
    autocast: bool = False,
    accumulates: bool = True,
    recomputed: bool = False,
    as_on_cpu: bool = True,
) -> "LiveBytes":
    """Make both passes, on tensors real or fake. See ``trace_microbatch``."""
    live = LiveBytes()
    for weight in model.parameters():
        if weight.requires_grad and accumulates:
            weight.grad = torch.empty_like(weight)
        elif weight.requires_grad:
            weight.register_post_accumulate_grad_hook(live.gradient_done)
    for tensor in (*model.parameters(), *model.buffers()):
        live.leave_out(tensor)
        if tensor.grad is not None:
            live.leave_out(tensor.grad)
    model.base_model.register_forward_hook(lambda *_: live.trunk_done())
    products = recomputed_products(model) if as_on_cpu else nullcontext()
    memory = HeadMemory() if as_on_cpu else None
    with recomputed_layers(model) if recomputed else products, live:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            found = completion_logprobs(model, batch.groups, temperature, want_entropy=True, form=form, memory=memory)
        live.forward_done()
        found.logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return live


def _make_fake(model: nn.Module, trained: torch.dtype) -> None:
    """Put fake tensors of the CPU in the place of a model's meta tensors, ties kept. ``Module.to`` refuses."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and id(weight) not in made:
                fake = torch.empty(weight.shape, dtype=trained if weight.requires_grad else weight.dtype)
                made[id(weight)] = nn.Parameter(fake, requires_grad=weight.requires_grad)
            module._parameters[name] = None if weight is None else made[id(weight)]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.empty(buffer.shape, dtype=buffer.dtype)


class LiveBytes(TorchDispatchMode):
    """Follows every storage that an operation makes while the mode is on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: Any = WeakIdKeyDictionary()
        self._now = self._small = self._gradients = self.trunk = 0
        self.forward = self.backward = Peak(0, 0, 0)

    def leave_out(self, tensor: Tensor) -> None:
        """Do not count what was there before."""
        self._known[tensor.untyped_storage()] = 0

    def trunk_done(self) -> None:
        """The last layer's output is there; computing it again later does not count."""
        self.trunk = self.trunk or self._now

    def forward_done(self) -> None:
        """What is higher from here on belongs to the backward pass."""
        self.forward, self.backward = self.backward, Peak(0, 0, 0)

    def gradient_done(self, weight: Tensor) -> None:
        """A weight's gradient is there to stay."""
        self._gradients += weight.nbytes

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._known:
                size = storage.nbytes()
                self._known[storage] = size
                self._add(size)
                weakref.finalize(storage, self._add, -size)
        if self._now > self.backward.most:
            self.backward = Peak(self._now, self._small, self._gradients)
        return result

    def _add(self, size: int) -> None:
        self._now += size
        if abs(size) < SMALL_BYTES:
            self._small += size
