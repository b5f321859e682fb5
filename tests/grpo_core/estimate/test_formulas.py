"""Bytes, operations and disk of a model small enough to count by hand."""

from dataclasses import replace

import pytest
from transformers import DynamicCache, LlamaConfig, Qwen2Config

from grpo_core.estimate.disk import disk_bytes
from grpo_core.estimate.memory import cache_tokens, generation_memory, update_memory, vllm_memory
from grpo_core.estimate.shapes import Shape, shape_of
from grpo_core.estimate.time import Rates, forward_flops, generation_seconds, update_seconds
from grpo_core.estimate.trace import Held
from grpo_core.generation.cache import spread
from grpo_core.policy.batching import Microbatch, PackedGroup, TrainingRollout
from grpo_core.policy.logprobs import LogprobForm
from grpo_core.policy.lora_config import LoraConfig

# 10 tokens, width 4, 2 layers: 40 of embedding; a layer has q 16, k and v 8 each, o 16, MLP 3 * 24, norms 2 * 4.
CONFIG = LlamaConfig(
    vocab_size=10,
    hidden_size=4,
    intermediate_size=6,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    tie_word_embeddings=True,
    max_position_embeddings=64,
)
LAYER = 16 + 8 + 8 + 16 + 72 + 8
BODY = 2 * LAYER + 4  # and the last norm


@pytest.fixture(name="shape")
def small_shape() -> Shape:
    return shape_of(CONFIG)


def test_a_shape_counts_what_the_model_has(shape: Shape) -> None:
    assert (shape.parameters, shape.body, shape.head, shape.root) == (40 + BODY, BODY, 40, 40)
    assert (shape.attention, shape.key_value, shape.key_value_numbers) == (4, 2, 8)
    assert shape.context == 64
    assert shape.small == shape.parameters


def test_a_head_of_its_own_counts_beside_the_embedding() -> None:
    untied = shape_of(LlamaConfig(**{**CONFIG.to_dict(), "tie_word_embeddings": False}))
    assert (untied.parameters, untied.body, untied.root) == (80 + BODY, BODY, 80)


def test_the_known_size_of_a_published_model() -> None:
    qwen = Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    assert shape_of(qwen).parameters == 1_543_714_304  # of Qwen2.5-1.5B's own files


def test_an_adapter_has_rank_times_in_and_out_of_each_target() -> None:
    shape = shape_of(CONFIG, LoraConfig(rank=3, targets=("q_proj", "down_proj")))
    assert shape.adapter == 2 * 3 * ((4 + 4) + (6 + 4))
    assert shape.parameters == 40 + BODY


def test_an_update_holds_sixteen_bytes_a_parameter(shape: Shape) -> None:
    count = shape.parameters
    found = update_memory(shape, Held(100, 130, 0, None), compute_bytes=2, base=7, on_cpu=False)
    assert found == {
        "weights": 4 * count, "gradients": 4 * count, "moments": 8 * count,
        "activations": 100, "logits": 30, "process": 7,
    }  # fmt: skip
    at_once = update_memory(shape, Held(100, 130, 0, 20), compute_bytes=2, base=7, on_cpu=False)
    assert at_once == found | {"gradients": 20, "logits": 10}
    without = update_memory(shape, None, compute_bytes=2, base=0, on_cpu=False)
    assert sum(without.values()) == 16 * count


def test_ranks_share_what_is_kept_and_gather_what_they_compute_with(shape: Shape) -> None:
    found = update_memory(shape, None, compute_bytes=2, base=0, on_cpu=False, ranks=4)
    count, layer, root = shape.parameters, shape.layer, shape.root
    assert {name: 4 * size for name, size in found.items() if name in ("weights", "moments")} == {
        "weights": 4 * count, "moments": 8 * count,
    }  # fmt: skip
    assert found["gathered weights"] == 2 * (root + 3 * layer)
    assert found["whole gradients"] == 2 * (root + layer) + 4 * max(root, 2 * layer)


def test_lora_trains_the_adapter_alone() -> None:
    shape = shape_of(CONFIG, LoraConfig(rank=1, targets=("q_proj",)))
    found = update_memory(shape, None, compute_bytes=2, base=0, on_cpu=False)
    assert shape.adapter == 2 * 8
    assert found == {
        "weights": 2 * shape.parameters + 4 * 16, "gradients": 4 * 16, "moments": 8 * 16,
    }  # fmt: skip


def test_generation_holds_keys_and_values_of_every_row(shape: Shape) -> None:
    found = generation_memory(shape, prompts=2, rows=6, prompt_tokens=5, completion_tokens=10, weight_bytes=4, base=0)
    assert found["KV cache"] == 6 * (5 + 64) * 8 * 4
    assert found["weights"] == 4 * shape.parameters


@pytest.mark.parametrize(("prompt", "completion"), [(5, 3), (5, 66), (5, 200), (300, 500)])
def test_the_cache_has_the_room_that_the_engine_s_own_has(prompt: int, completion: int) -> None:
    import torch

    cache = DynamicCache(config=CONFIG)
    for layer in range(2):
        cache.update(torch.zeros(1, 1, prompt, 2), torch.zeros(1, 1, prompt, 2), layer)
    spread(cache, torch.zeros(3, dtype=torch.long))
    for _ in range(completion - 1):  # the last token is never fed in
        cache.layers[0].update(torch.zeros(3, 1, 1, 2), torch.zeros(3, 1, 1, 2))
    assert cache.layers[0]._key_room.shape[2] == cache_tokens(prompt, completion)


def test_vllm_takes_its_share_and_caches_in_what_is_left(shape: Shape) -> None:
    found = vllm_memory(
        shape, device_bytes=10_000, memory_share=0.8, tensor_parallel=2, weight_bytes=2, cache_bytes=None, row_bytes=9
    )
    assert sum(found.values()) == 8000
    assert found["weights"] == shape.parameters
    told = vllm_memory(
        shape, device_bytes=10_000, memory_share=0.8, tensor_parallel=2, weight_bytes=2, cache_bytes=5, row_bytes=9
    )
    assert told["KV cache"] == 5
    tight = vllm_memory(
        shape, device_bytes=100, memory_share=0.8, tensor_parallel=2, weight_bytes=2, cache_bytes=None, row_bytes=9
    )
    assert tight["KV cache"] == 5
    assert sum(tight.values()) > 100


def batch_of(prompt: int, completions: list[int]) -> Microbatch:
    rollout = TrainingRollout("p", [1] * prompt, [1] * sum(completions), [0.0] * sum(completions), 0.0)
    return Microbatch([PackedGroup([1] * prompt, [[1] * length for length in completions])], [rollout])


def test_a_forward_pass_multiplies_every_weight_and_attends_as_its_form_does(shape: Shape) -> None:
    masked = LogprobForm(shared_prefix=True, chunked_head=True, softcap=None, crossover=9.0)
    found = forward_flops(shape, batch_of(5, [4, 3]), masked)
    row = 5 + 3 + 2  # a completion's last token is not fed in
    assert found == 2 * BODY * row + 4 * 2 * 4 * row * row + 2 * 40 * 7
    padded = forward_flops(shape, batch_of(5, [4, 3]), replace(masked, shared_prefix=False))
    assert padded == 2 * BODY * 16 + 4 * 2 * 4 * 16 * 8 + 2 * 40 * 7
    by_parts = forward_flops(shape, batch_of(5, [4, 3]), replace(masked, by_parts=True))
    pairs = 15 + (15 + 6) + (10 + 3)  # the prompt's own; each completion's to the prompt and its own
    assert by_parts == 2 * BODY * row + 4 * 2 * 4 * pairs + 2 * 40 * 7


def test_passes_add_up_and_an_odd_micro_batch_leaves_a_rank_idle() -> None:
    rates = Rates(flops=100, bandwidth=1, launch=0)
    options = {"passes_before": 1, "epochs": 2, "share_after": 0.5, "adapters_only": False}
    work, seconds = update_seconds([10.0] * 3, rates, ranks=1, recomputed=False, **options)
    assert work == 30 * (1 + 2 * 3 + 0.5)
    assert seconds == pytest.approx(work / 100)
    assert update_seconds([10.0] * 3, rates, ranks=2, recomputed=False, **options)[1] == pytest.approx(seconds * 2 / 3)
    assert update_seconds([10.0] * 3, rates, ranks=1, recomputed=True, **options)[0] == 30 * (1 + 2 * 4 + 0.5)


def test_a_step_of_one_row_takes_as_long_as_the_weights_take_to_read(shape: Shape) -> None:
    rates = Rates(flops=1e30, bandwidth=100, launch=0)
    _, seconds = generation_seconds(
        shape, rates, batches=3, prompts=1, rows=1, prompt_tokens=0, completion_tokens=0, steps=10, weight_bytes=2,
        devices=2,
    )  # fmt: skip
    assert seconds == pytest.approx(2 * 10 * 2 * shape.parameters / 100)


def test_disk_keeps_the_newest_the_first_and_the_best(shape: Shape) -> None:
    count = shape.parameters
    options = {"rollouts": 10, "completion_tokens": 100, "policies_kept": 2, "states_kept": 1, "kept_besides": 1}
    found = disk_bytes(shape, rounds=50, weight_bytes=2, steps=4, checkpoint_steps=2, **options)
    assert found.policy == 2 * count
    assert found.trainer_state == 12 * count  # two moments, and the weights that the policy beside it has rounded
    assert found.checkpoint == 12 * count
    assert found.models_at_most == 4 * count + 2 * count * (2 + 1 + 1) + 12 * count * 2 + 12 * count
    assert found.run == found.models_at_most + 50 * found.round_tables
    assert found.round_tables == 10 * (100 * 7 + 600)
    one = disk_bytes(shape, rounds=1, weight_bytes=4, steps=2, checkpoint_steps=2, **options)
    assert one.models_at_most == 4 * count + 4 * count + 8 * count
