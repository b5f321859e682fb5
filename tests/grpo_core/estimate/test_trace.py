"""The count on fake tensors is the count of the same passes on real ones."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from grpo_core.estimate.trace import Held, count_bytes, trace_microbatch
from grpo_core.estimate.work import Lengths, expected_form, largest_held, packed
from grpo_core.policy import token_logprobs
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.lora_config import LoraConfig

SIZES = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
UPDATE = UpdateConfig(tokens_per_microbatch=256)


def config_of(layers: int, family: type = LlamaConfig):
    return family(num_hidden_layers=layers, **SIZES)


def batch_and_form(config):
    form = expected_form(config, 32, "cpu")
    return packed(form, 256, 4, 4, 12, 20)[0], form


@pytest.mark.parametrize("family", [LlamaConfig, Qwen2Config])
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("as_on_cpu", [False, True])
def test_fake_tensors_take_the_bytes_of_real_ones(family: type, recomputed: bool, as_on_cpu: bool) -> None:
    config = config_of(3, family)
    batch, form = batch_and_form(config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    options = {"recomputed": recomputed, "as_on_cpu": as_on_cpu}
    real = count_bytes(model, batch, form, **options)
    fake = trace_microbatch(config, batch, form, **options)
    assert fake == Held(real.trunk, max(real.forward.most, real.backward.most), fake.small, None)
    assert real.trunk > 0


def test_eight_blocks_of_logits_are_told_from_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_logprobs, "_BLOCK_LOGITS", 1)
    config = LlamaConfig(num_hidden_layers=2, **SIZES | {"vocab_size": 20_000})
    batch, form = batch_and_form(config)
    real = count_bytes(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval(), batch, form)
    assert trace_microbatch(config, batch, form).most == max(real.forward.most, real.backward.most)
    assert real.forward.most > 4 * batch.tokens * 20_000 * 9 / 8  # the logits, and beside them more than one block


def test_seven_layers_are_told_from_two_and_three() -> None:
    config = config_of(7)
    batch, form = batch_and_form(config)
    real = count_bytes(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval(), batch, form)
    found = trace_microbatch(config, batch, form)
    assert (found.activations, found.most) == (real.trunk, max(real.forward.most, real.backward.most))


def test_a_step_of_one_micro_batch_makes_its_gradients_on_the_way() -> None:
    config = config_of(2)
    batch, form = batch_and_form(config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    real = count_bytes(model, batch, form, accumulates=False)
    found = trace_microbatch(config, batch, form, accumulates=False)
    assert found.most == max(real.forward.most, real.backward.most)
    assert real.forward.gradients == 0
    assert found.gradients in (0, real.backward.gradients)
    assert all(weight.grad is not None for weight in model.parameters())


def test_each_setting_that_saves_memory_saves_some() -> None:
    config = config_of(8)
    batch, form = batch_and_form(config)
    plain = trace_microbatch(config, batch, form)
    assert trace_microbatch(config, batch, form, as_on_cpu=False).activations > plain.activations * 5 / 4
    assert trace_microbatch(config, batch, form, recomputed=True).activations < plain.activations / 4
    assert trace_microbatch(config, batch, form, lora=LoraConfig(rank=2)).most < plain.most
    assert trace_microbatch(config, batch, form, dtype=torch.bfloat16).activations < plain.activations


def test_the_larger_of_long_and_of_mean_completions_counts() -> None:
    config = config_of(2)
    small = largest_held(config, UPDATE, 4, 4, Lengths(12, 12, 20, 20))
    assert largest_held(config, UPDATE, 4, 4, Lengths(12, 12, 20, 60)).most >= small.most
    assert largest_held(config, UPDATE, 4, 4, Lengths(12, 12, 2, 20)).most >= small.most
    half = UPDATE.model_copy(update={"tokens_per_microbatch": 100})
    assert largest_held(config, half, 4, 4, Lengths(12, 12, 20, 20)).most < small.most
