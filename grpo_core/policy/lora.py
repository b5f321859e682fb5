"""LoRA through PEFT: adapters on a frozen model, what is saved of them, and the merged weights that every engine takes.

The base of every round is the run's first policy, and what carries over is the adapter in float32 (with the trainer's
state), so that no round adds to weights that were rounded. Without its adapter the model is the reference policy.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from grpo_core.errors import UserError
from grpo_core.models import load_policy
from grpo_core.policy.lora_config import LoraConfig
from grpo_core.seeding import hash64

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer
    from transformers import PreTrainedModel

ADAPTER_FOLDER = "adapter"
_NAME = "default"  # PEFT's own
_A, _B = f"lora_A.{_NAME}.weight", f"lora_B.{_NAME}.weight"


def add_adapter(model: "PreTrainedModel", config: LoraConfig) -> None:
    """Freeze a model and give its target layers adapters, on the meta device and without values, in place.

    Raises:
        UserError: no layer is meant, or one that can't be merged back.
    """
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    targets = "all-linear" if config.targets is None else list(config.targets)
    told = PeftConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, task_type="CAUSAL_LM")
    try:
        inject_adapter_in_model(told, model, _NAME, low_cpu_mem_usage=True)
    except ValueError as error:
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"update.lora.targets fits no layer of the model ({first}); name linear layers.") from error
    layers = adapted_layers(model)
    head = model.get_output_embeddings()
    for name, layer in layers.items():
        if not isinstance(layer.get_base_layer(), nn.Linear) or layer is head:
            raise UserError(
                f"update.lora.targets means '{name}', which is no linear layer inside the model; leave it out."
            )
    for parameter_name, weight in model.named_parameters():
        weight.requires_grad_("lora_" in parameter_name)


def load_base_with_adapter(
    folder: Path, device: torch.device, dtype: torch.dtype, config: LoraConfig, seed: int
) -> "PreTrainedModel":
    """A saved policy in a dtype, frozen, with an adapter's first weights by ``seed`` in float32.

    Raises:
        UserError: as ``add_adapter``.
    """
    model: PreTrainedModel = load_policy(folder, device, dtype)
    add_adapter(model, config)
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            first = first_adapter_weight(name, weight.shape, seed).to(device)
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, nn.Parameter(first))
    return model


def adapted_layers(model: nn.Module) -> "dict[str, LoraLayer]":
    """Layers that have an adapter, by name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def first_adapter_weight(name: str, shape: torch.Size, seed: int) -> Tensor:
    """What a weight of an adapter starts from, in float32 on the CPU: B at 0, A as PEFT draws it, by seed and name."""
    if name.endswith(_B):
        return torch.zeros(shape)
    bound = 1 / math.sqrt(shape[1])  # kaiming_uniform with a = sqrt(5)
    draw = torch.Generator().manual_seed(hash64(seed, "lora", name))
    return torch.empty(shape).uniform_(-bound, bound, generator=draw)


@contextmanager
def base_alone(model: nn.Module) -> Iterator[None]:
    """The model without its adapter, inside; one that has none stays as it is."""
    layers = adapted_layers(model).values()
    for layer in layers:
        layer.set_scale(_NAME, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(_NAME, 1.0)


def name_on_disk(name: str) -> str:
    """The name that a weight of the base has in a saved policy."""
    return name.replace(".base_layer.", ".")


def require_mergeable(model: nn.Module, names: Iterable[str]) -> None:
    """Raise UserError when an adapter's layer has no weight of its own among those of the saved policy, by name."""
    there = set(names)
    for layer in adapted_layers(model):
        if f"{layer}.weight" not in there:
            raise UserError(
                f"update.lora.targets means '{layer}', whose weight the saved policy holds under another name, so that "
                "nothing could be merged into it; leave it out."
            )


def merge(name: str, base: Tensor, adapter: Mapping[str, Tensor], config: LoraConfig) -> Tensor:
    """A weight of the base, by its name on disk, with its adapter's part added in float32: W + alpha / rank * B A.

    Args:
        adapter: whole weights of the adapter by their names in the model.
    """
    layer = name.removesuffix("weight")
    if layer + _A not in adapter:
        return base
    a, b = adapter[layer + _A], adapter[layer + _B]
    return base.float() + (b.float() @ a.float()) * (config.alpha / config.rank)


def save_adapter(folder: Path, adapter: Mapping[str, Tensor], config: LoraConfig) -> None:
    """Write an adapter as ``peft.PeftModel.from_pretrained`` reads it; equal weights leave equal bytes."""
    from peft import LoraConfig as PeftConfig

    folder.mkdir(parents=True, exist_ok=True)
    named = {f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": weight for name, weight in adapter.items()}
    save_file({name: weight.contiguous() for name, weight in named.items()}, folder / "adapter_model.safetensors")
    layers = sorted({name.partition(".lora_")[0] for name in adapter})
    told = PeftConfig(r=config.rank, lora_alpha=config.alpha, task_type="CAUSAL_LM", inference_mode=True)
    values = told.to_dict() | {"target_modules": layers}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in values.items()}
    (folder / "adapter_config.json").write_text(
        json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8"
    )
