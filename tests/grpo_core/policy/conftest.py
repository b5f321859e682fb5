from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from grpo_core.policy.batching import TrainingRollout

torch.set_num_threads(1)  # a second one spins where other processes want the cores

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # large enough for logprobs to differ by whole nats
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXTRA: dict[str, dict[str, Any]] = {
    "Qwen3": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "final_logit_softcapping": 3.0, "sliding_window": 16},
    "Granite": {"logits_scaling": 8.0},
    "Mamba": {"state_size": 8},
    "Mistral": {"sliding_window": 16},
}

Build = Callable[..., Any]


@pytest.fixture(scope="session")
def build() -> Build:
    """Builds a tiny model of a family with random weights by seed, in float32 and eval mode."""

    def make(family: str = "Llama", seed: int = 0, **config: Any) -> Any:
        settings = _SIZES | _EXTRA.get(family, {}) | config
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**settings))
        return model.eval()

    return make


@pytest.fixture(scope="session")
def rollouts_of() -> Callable[..., list[TrainingRollout]]:
    """Makes rollouts of random tokens and unequal lengths; old logprobs near those of a uniform policy."""

    def make(groups: int = 4, size: int = 4, seed: int = 0) -> list[TrainingRollout]:
        draw = torch.Generator().manual_seed(seed)
        found = []
        for number in range(groups):
            prompt = torch.randint(3, 64, (3 + 2 * number,), generator=draw).numpy()
            for _ in range(size):
                length = int(torch.randint(1, 9, (1,), generator=draw))
                ids = torch.randint(3, 64, (length,), generator=draw).numpy()
                logprobs = (-4.0 - torch.rand(length, generator=draw)).numpy()
                advantage = float(torch.randn(1, generator=draw))
                found.append(TrainingRollout(f"p{number}", prompt, ids, logprobs, advantage))
        return found

    return make
