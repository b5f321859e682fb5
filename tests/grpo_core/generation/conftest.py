import pytest

from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.tiny import build_tiny


@pytest.fixture(scope="session")
def tiny():
    """Tiny with its head's weights scaled up, so that its distributions are far from even and EOS comes at many steps."""
    model, tokenizer = build_tiny(0)
    model.get_output_embeddings().weight.data *= 8
    return model, tokenizer


@pytest.fixture(scope="session")
def engine(tiny):
    return TransformersEngine(*tiny)
