"""The value head: what reward to expect from here on, read off the policy's last hidden states.

It is no part of the policy that the sampler loads. Its weights and moments lie with the trainer's state, in a file of
their own whose bytes are equal for equal states.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grpo_core.errors import UserError
from grpo_core.policy.config import UpdateConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VALUE_FILE = "value_head.safetensors"


class ValueHead(nn.Module):
    """One linear unit in float32 that starts at 0, so that the first values and their pull on the trunk are 0."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(1, dtype=torch.float32))

    def forward(self, hidden: Tensor) -> Tensor:
        """(T, H) hidden states to (T,) values in float32; call it outside autocast."""
        return F.linear(hidden.float(), self.weight, self.bias).squeeze(-1)


@dataclass(slots=True)
class ValueState:
    """The head and its AdamW, which works on these very tensors, in place."""

    head: ValueHead
    step: int  # optimiser steps that the head has taken, over all rounds
    exp_avg: dict[str, Tensor]  # first moment by parameter name
    exp_avg_sq: dict[str, Tensor]  # second moment


def new_value_state(model: "PreTrainedModel") -> ValueState:
    """A head of zeros that has taken no step, of the model's width and on its device."""
    head = ValueHead(model.config.get_text_config().hidden_size).to(model.device)
    moments = [{name: torch.zeros_like(weight) for name, weight in head.named_parameters()} for _ in range(2)]
    return ValueState(head, 0, *moments)


def build_value_optimizer(state: ValueState, config: UpdateConfig) -> torch.optim.AdamW:
    """AdamW that continues from the state and writes into its tensors; no decay, for zero is no better value."""
    optimizer = torch.optim.AdamW(
        state.head.parameters(),
        lr=config.ppo.value_learning_rate,
        betas=config.betas,
        eps=config.adam_epsilon,
        weight_decay=0.0,
        fused=True,
    )
    for name, weight in state.head.named_parameters():
        optimizer.state[weight] = {
            "step": torch.tensor(float(state.step), dtype=torch.float32, device=weight.device),
            "exp_avg": state.exp_avg[name],
            "exp_avg_sq": state.exp_avg_sq[name],
        }
    return optimizer


def save_value_state(folder: Path, state: ValueState) -> None:
    """Write the head, its moments and its count of steps as one file of a folder that is there."""
    tensors = {f"weight.{name}": weight.detach() for name, weight in state.head.named_parameters()}
    tensors |= {f"exp_avg.{name}": moment for name, moment in state.exp_avg.items()}
    tensors |= {f"exp_avg_sq.{name}": moment for name, moment in state.exp_avg_sq.items()}
    save_file(tensors | {"step": torch.tensor(state.step, dtype=torch.int64)}, folder / VALUE_FILE)


def load_value_state(folder: Path, model: "PreTrainedModel") -> ValueState | None:
    """Read a head onto the model's device; None where the folder has none: no round before had a PPO part.

    Raises:
        UserError: the head belongs to a model of another width.
    """
    if not (folder / VALUE_FILE).is_file():
        return None
    tensors = load_file(folder / VALUE_FILE, device=str(model.device))
    state = new_value_state(model)
    state.step = int(tensors["step"])
    for name, weight in state.head.named_parameters():
        if tensors[f"weight.{name}"].shape != weight.shape:
            raise UserError(f"'{folder / VALUE_FILE}' belongs to a model of another width; start a new run folder.")
        weight.data.copy_(tensors[f"weight.{name}"])
        state.exp_avg[name] = tensors[f"exp_avg.{name}"]
        state.exp_avg_sq[name] = tensors[f"exp_avg_sq.{name}"]
    return state


def value_loss_sum(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Sum over tokens of max((V - R)^2, (V_clipped - R)^2) / 2, V_clipped = old V + clamp(V - old V, -clip, clip).

    The worse of the two, as in OpenAI's baselines PPO2 and lm-human-preferences: a value that has left the bound in the
    right direction gets no more gradient. None leaves (V - R)^2 / 2. All of one shape; the gradient flows through
    ``values`` alone.
    """
    error = (values - returns).square()
    if clip is not None:
        held = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return 0.5 * error.sum()
