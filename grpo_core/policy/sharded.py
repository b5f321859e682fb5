"""A policy whose weights are spread over ranks by FSDP2: read slice by slice, gathered tensor by tensor.

No rank ever holds all of it on its device. The files are those of one process; whatever number of ranks wrote them, any
other can read them.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from grpo_core.errors import UserError
from grpo_core.policy.layers import decoder_layers
from grpo_core.policy.logprobs import flat_logprobs
from grpo_core.policy.lora import add_adapter, first_adapter_weight, name_on_disk
from grpo_core.policy.lora_config import LoraConfig
from grpo_core.policy.shards import rows_like, shard_of, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def skeleton(folder: Path) -> "PreTrainedModel":
    """A saved policy in eval mode without its weights: parameters on the meta device, buffers computed."""
    from accelerate import init_empty_weights
    from transformers import GenerationConfig

    from grpo_core.models import policy_classes

    auto, config, attention = policy_classes(folder)
    # Buffers that no file holds, such as rotary frequencies, come from the model's own code.
    with init_empty_weights(include_buffers=False):
        model = auto.from_config(config, dtype=torch.float32, attn_implementation=attention)
    model.tie_weights()
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    return model.eval()


def load_sharded(
    folder: Path,
    device: torch.device,
    *,
    compute: torch.dtype,
    base: torch.dtype = torch.float32,
    lora: LoraConfig | None = None,
    seed: int = 0,
) -> "PreTrainedModel":
    """A saved policy over all ranks of the process group, ready for ``completion_logprobs``.

    Args:
        compute: of gathered weights and of what is computed with them; gradients are summed in float32.
        base: of the weights that this rank keeps; float32 where they are trained.
        lora: adds an adapter with its first weights by ``seed``, in float32, and freezes the rest.

    Raises:
        UserError: the files hold other weights than the model has, or it has no layers to shard by.
    """
    model = skeleton(folder)
    if lora is not None:
        add_adapter(model, lora)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for module in [*decoder_layers(model), model]:
        # The root, too, is given up after its forward pass: between passes there are shards only.
        sharded = fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
        sharded.set_gradient_divide_factor(1.0)  # a sum over ranks, not their mean
        sharded.set_force_sum_reduction_for_comms(True)
    with PolicyFiles(folder) as files:
        read = {}
        for name, weight in model.named_parameters():
            rows = rows_like(weight)
            if "lora_" in name:
                local = first_adapter_weight(name, weight.shape, seed)[rows].to(device)
            else:
                local = files.rows(name_on_disk(name), weight.shape, rows).to(device, base)
            read[weight] = nn.Parameter(shard_of(local, weight), requires_grad=weight.requires_grad)
    # By every name that a weight has, so that tied ones stay one.
    every = {name: read[weight] for name, weight in model.named_parameters(remove_duplicate=False)}
    model.load_state_dict(every, strict=False, assign=True)
    model.flat_logprobs = MethodType(flat_logprobs, model)
    register_fsdp_forward_method(model, "flat_logprobs")
    return model


def whole_weights(weights: Mapping[str, Tensor], dtype: torch.dtype, *, keep: bool) -> dict[str, Tensor]:
    """Whole weights on the CPU, gathered one at a time; all ranks have to ask, those that don't ``keep`` get none."""
    found = {}
    for name, weight in weights.items():
        gathered = whole(weight.detach())
        if keep:
            found[name] = gathered.to("cpu", dtype)
    return found


class PolicyFiles:
    """The weights of a saved policy, read by name and by rows without loading the rest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / _INDEX
        self._places: Mapping[str, str] | None = None
        if index.is_file():
            self._places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "PolicyFiles":
        if self._places is None:
            whole_file = self._file(_WEIGHTS)
            self._places = dict.fromkeys(whole_file.keys(), _WEIGHTS)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places or ())

    def rows(self, name: str, shape: torch.Size, rows: slice) -> Tensor:
        """Some rows of a weight, on the CPU. Raises UserError when it is not there in this shape."""
        if name not in (self._places or {}) or tuple(self._slice(name).get_shape()) != tuple(shape):
            raise UserError(
                f"'{self._folder}' holds no weight '{name}' of shape {tuple(shape)}, as the model has it once it is "
                "loaded; set update.ranks to 1, by which transformers loads it."
            )
        found: Tensor = self._slice(name)[rows.start : rows.stop]
        return found

    def all_rows(self, name: str) -> Tensor:
        """A weight, on the CPU."""
        found: Tensor = self._slice(name)[:]
        return found

    def _slice(self, name: str) -> Any:
        assert self._places is not None
        return self._file(self._places[name]).get_slice(name)

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = self._stack.enter_context(safe_open(self._folder / name, framework="pt"))
        return self._open[name]
