"""A head whose logits and gradient lie in memory that is kept, against the head as it is."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from grpo_core.policy import logprobs
from grpo_core.policy.batching import PackedGroup
from grpo_core.policy.form import inspect_model
from grpo_core.policy.head import HeadMemory
from grpo_core.policy.layers import gradient_of_rows

MICROBATCHES = [
    [PackedGroup([5, 6, 7], [[8, 9, 10, 11], [12, 13], [14]])],
    [PackedGroup([20, 21], [[22, 23, 24], [25, 26, 27, 28, 29]])],
    [PackedGroup([30], [[31, 32]])],
]


def linear(words: int = 7, width: int = 3) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, words, bias=False)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma2"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("chunk", [2**20, 4 * 64, 64])
@pytest.mark.parametrize("temperature", [0.8, 1.0])  # at 1 the gradient lies where the logits were
def test_gradients_of_a_step_are_those_of_the_plain_head(
    build: Callable[..., Any],
    family: str,
    tied: bool,
    chunk: int,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", chunk)
    model = build(family, tie_word_embeddings=tied)
    form = inspect_model(model, 40)
    found = []
    for memory, inside in ((None, nullcontext()), (HeadMemory(), gradient_of_rows(model))):
        model.zero_grad(set_to_none=True)
        values = []
        with inside:
            for groups in MICROBATCHES:
                one = logprobs.completion_logprobs(
                    model, groups, temperature, True, form=form, entropy_gradient=True, memory=memory
                )
                assert one.entropy is not None
                (one.logprobs.square().sum() + one.entropy.sum()).backward()
                values.append(one.logprobs.detach())
        found.append((torch.cat(values), {name: weight.grad for name, weight in model.named_parameters()}))
    (expected, by_name), (values_, kept) = found
    assert torch.equal(values_, expected)
    assert kept.keys() == by_name.keys()
    for name, gradient in by_name.items():
        torch.testing.assert_close(kept[name], gradient, atol=1e-5, rtol=1e-5)


def test_memory_is_the_same_from_one_micro_batch_to_the_next() -> None:
    head, memory, places = linear(), HeadMemory(), []
    for rows in (4, 2, 4):
        logits = memory.logits(head, torch.ones(rows, 3, requires_grad=True), held=True)
        places.append(logits.data_ptr())
        logits.sum().backward()
    assert len(set(places)) == 1
    assert head.weight.grad is not None
    assert torch.equal(head.weight.grad, torch.full((7, 3), 10.0))  # ten rows of ones


def test_logits_that_are_held_are_not_overwritten_before_their_backward_pass() -> None:
    head, memory = linear(), HeadMemory()
    first = memory.logits(head, torch.ones(2, 3, requires_grad=True), held=True)
    kept = first.detach().clone()
    second = memory.logits(head, torch.zeros(2, 3, requires_grad=True), held=True)
    assert torch.equal(first, kept)
    (first.square().sum() + second.sum()).backward()
    once_more = memory.logits(head, torch.zeros(2, 3), held=False)
    assert once_more.data_ptr() == first.data_ptr()


def test_a_head_that_is_no_plain_product_is_called_as_it_is() -> None:
    biased = nn.Linear(3, 7)
    seen = HeadMemory().logits(biased, torch.ones(2, 3), held=False)
    assert torch.equal(seen, biased(torch.ones(2, 3)))
    plain = linear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert HeadMemory().logits(plain, torch.ones(2, 3), held=False).dtype is torch.bfloat16


def test_a_frozen_head_gets_no_gradient() -> None:
    head = linear().requires_grad_(False)
    hidden = torch.ones(2, 3, requires_grad=True)
    HeadMemory().logits(head, hidden, held=True).sum().backward()
    assert head.weight.grad is None
    torch.testing.assert_close(hidden.grad, head.weight.sum(0).expand(2, 3))
