import pytest
import torch

from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.tiny import build_tiny


@pytest.fixture(scope="session")
def tiny():
    """Tiny with a wider head of its own: its distributions are far from even, and EOS is likelier than most."""
    model, tokenizer = build_tiny(0)
    weight = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(0)) * 0.2
    weight[tokenizer.eos_token_id] *= 2
    model.lm_head.weight = torch.nn.Parameter(weight)
    return model, tokenizer


@pytest.fixture(scope="session")
def engine(tiny):
    return TransformersEngine(*tiny)
