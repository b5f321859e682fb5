"""AdamW with linear warm-up, and the state that carries over from round to round: moments, step count, random numbers.

On disk it is safetensors of at most about 2 GiB a file and one JSON: equal states have equal bytes.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grpo_core.errors import UserError
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.ranks import ALONE, Ranks
from grpo_core.policy.shards import read_like, whole
from grpo_core.policy.value import ValueState, load_value_state, save_value_state
from grpo_core.seeding import hash64

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATE_FILE = "trainer_state.json"
_RNG_FILE = "rng.safetensors"
_FILE_BYTES = 2**31
_FORMAT = 1


@dataclass(slots=True)
class TrainerState:
    """What training needs besides the weights. ``build_optimizer`` works on these very tensors, in place."""

    step: int  # optimiser steps done, over all rounds
    exp_avg: dict[str, Tensor]  # first moment by parameter name, float32
    exp_avg_sq: dict[str, Tensor]  # second moment
    rng_cpu: Tensor  # state of torch's CPU generator
    rng_cuda: Tensor | None  # of the current CUDA device's; None until an update ran on one
    value: ValueState | None = None  # the value head; None until a round had a PPO part

    def take_random_numbers(self, device: torch.device) -> None:
        """Take up torch's generators as they stand now."""
        self.rng_cpu = torch.get_rng_state()
        if device.type == "cuda":
            self.rng_cuda = torch.cuda.get_rng_state()


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name, in the model's order. A tied weight appears once, under its first name.

    Raises:
        ValueError: a parameter is not float32. The optimiser works on master weights: an update of 1e-6 of a weight
            vanishes in bfloat16's eight bits.
    """
    found = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for name, weight in found.items():
        if weight.dtype != torch.float32:
            raise ValueError(f"parameter '{name}' is {weight.dtype}; load the policy in float32 to train it")
    return found


def new_trainer_state(model: nn.Module, seed: int) -> TrainerState:
    """The state before the first step: zero moments, random numbers from the run's seed."""
    parameters = trainable_parameters(model)
    return TrainerState(
        step=0,
        exp_avg={name: torch.zeros_like(weight) for name, weight in parameters.items()},
        exp_avg_sq={name: torch.zeros_like(weight) for name, weight in parameters.items()},
        rng_cpu=torch.Generator().manual_seed(hash64(seed, "trainer")).get_state(),
        rng_cuda=None,
    )


def learning_rate_at(step: int, config: UpdateConfig) -> float:
    """The rate of optimiser step ``step`` (0 is the first of the run): linear warm-up, then constant."""
    return config.learning_rate * warmup_at(step, config)


def warmup_at(step: int, config: UpdateConfig) -> float:
    """The share of its learning rate that step ``step`` of an optimiser takes."""
    return min(1.0, (step + 1) / max(1, config.warmup_steps))


def build_optimizer(model: nn.Module, state: TrainerState, config: UpdateConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) that continues from the state and writes into its tensors.

    Weight decay applies to matrices; biases and norms have none. The rate is set before each step by the caller.

    Raises:
        ValueError: the state names other parameters than the model.
    """
    parameters = trainable_parameters(model)
    if list(parameters) != list(state.exp_avg):
        raise ValueError("the trainer state belongs to a model with other parameters")
    groups = [
        {"params": [w for w in parameters.values() if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in parameters.values() if w.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.adam_epsilon,
        fused=True,
    )
    for name, weight in parameters.items():
        optimizer.state[weight] = {
            "step": torch.tensor(float(state.step), dtype=torch.float32, device=weight.device),
            "exp_avg": state.exp_avg[name],
            "exp_avg_sq": state.exp_avg_sq[name],
        }
    return optimizer


@contextmanager
def random_numbers(state: TrainerState, device: torch.device, seed: int) -> Iterator[None]:
    """Torch's generators continue from the state inside, and the state takes them up; outside nothing is disturbed.

    So the bytes of a saved state depend on the run alone, not on what else the process drew.
    """
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.set_rng_state(state.rng_cpu)
        if devices:
            if state.rng_cuda is None:
                torch.cuda.manual_seed(hash64(seed, "trainer"))
            else:
                torch.cuda.set_rng_state(state.rng_cuda)
        yield
        state.take_random_numbers(device)


def save_trainer_state(
    folder: Path, model: "PreTrainedModel", state: TrainerState, *, master_weights: bool, ranks: Ranks = ALONE
) -> None:
    """Write the state into a folder, which is made if need be; the same files whatever number of ranks does it.

    Args:
        master_weights: True writes the model's float32 weights too: needed where the policy beside it is saved in a
            smaller dtype.
        ranks: which all call this; each writes files of its own. The folder is whole when all have returned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parameters = trainable_parameters(model)
    files: dict[str, dict[str, Tensor]] = {}
    places: dict[str, str] = {}
    size = _FILE_BYTES
    for name, weight in parameters.items():
        tensors = {f"exp_avg.{name}": state.exp_avg[name], f"exp_avg_sq.{name}": state.exp_avg_sq[name]}
        if master_weights:
            tensors[f"weight.{name}"] = weight.detach()
        added = sum(tensor.nbytes for tensor in tensors.values())
        if size + added > _FILE_BYTES:
            file, size = f"optimizer-{len(files):05d}.safetensors", 0
            files[file] = {}
        files[file] |= tensors
        places[name] = file
        size += added
    for number, (file, content) in enumerate(files.items()):
        is_mine = number % ranks.size == ranks.rank
        tensors = {}
        for key, tensor in content.items():
            gathered = whole(tensor)
            if is_mine:
                tensors[key] = gathered.cpu().contiguous()
        if is_mine:
            save_file(tensors, folder / file)
    if ranks.rank > 0:
        return
    numbers = {"cpu": state.rng_cpu} | ({} if state.rng_cuda is None else {"cuda": state.rng_cuda})
    save_file(numbers, folder / _RNG_FILE)
    index = {"format": _FORMAT, "step": state.step, "master_weights": master_weights, "parameters": places}
    if state.value is not None:
        save_value_state(folder, state.value)
    (folder / STATE_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def load_trainer_state(folder: Path, model: "PreTrainedModel") -> TrainerState:
    """Read a state onto the model's device; master weights, where it holds any, go into the model.

    Raises:
        UserError: the folder holds no readable state, or that of another model.
    """
    try:
        index: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{folder / STATE_FILE}' can't be read; resume from a round that is whole.") from error
    parameters = trainable_parameters(model)
    places: dict[str, str] = index["parameters"]
    if index["format"] != _FORMAT or list(places) != list(parameters):
        raise UserError(f"'{folder}' holds the trainer state of another model; start a new run folder.")
    state = TrainerState(int(index["step"]), {}, {}, torch.empty(0), None)
    for file in dict.fromkeys(places.values()):
        with safe_open(folder / file, framework="pt", device=str(model.device)) as tensors:
            for name in (name for name, place in places.items() if place == file):
                weight = parameters[name]
                if tuple(tensors.get_slice(f"exp_avg.{name}").get_shape()) != tuple(weight.shape):
                    raise UserError(f"'{folder}' has another shape for parameter '{name}'; start a new run folder.")
                state.exp_avg[name] = read_like(tensors, f"exp_avg.{name}", weight)
                state.exp_avg_sq[name] = read_like(tensors, f"exp_avg_sq.{name}", weight)
                if index["master_weights"]:
                    weight.data.copy_(read_like(tensors, f"weight.{name}", weight))
    numbers = load_file(folder / _RNG_FILE)
    state.rng_cpu, state.rng_cuda = numbers["cpu"], numbers.get("cuda")
    state.value = load_value_state(folder, model)
    return state
