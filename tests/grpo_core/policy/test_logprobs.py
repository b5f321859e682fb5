import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpo_core.policy import logprobs as module
from grpo_core.policy import prefix_attention
from grpo_core.policy.batching import PackedGroup
from grpo_core.policy.form import attention_crossover, inspect_model
from grpo_core.policy.logprobs import LogprobForm, Logprobs, completion_logprobs

GROUPS = [
    PackedGroup([5, 6, 7, 8, 9], [[10, 11, 12], [13], [14, 15, 16, 17, 18, 19, 2], [10, 11, 20]]),
    PackedGroup([1, 3], [[30, 31, 32, 33], [34, 35]]),
    PackedGroup([40, 41, 42], [[43, 44]]),
]
SHARED = LogprobForm(shared_prefix=True, chunked_head=True, softcap=None, crossover=100.0)
PARTS = replace(SHARED, by_parts=True)
PADDED = replace(SHARED, shared_prefix=False)
OWN = replace(PADDED, chunked_head=False)


def plainly(model: Any, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward pass a completion, all logits, no padding, no mask: the definition."""
    found, entropies = [], []
    for group in GROUPS:
        for completion in group.completions:
            logits = model(torch.tensor([[*group.prompt_ids, *completion]])).logits[0].double() / temperature
            distribution = logits[len(group.prompt_ids) - 1 : -1].log_softmax(-1)
            found.append(distribution.gather(-1, torch.tensor(completion)[:, None])[:, 0])
            entropies.append(-(distribution.exp() * distribution).sum(-1))
    return torch.cat(found), torch.cat(entropies)


def compute(model: Any, form: LogprobForm, temperature: float = 1.0) -> Logprobs:
    return completion_logprobs(model, GROUPS, temperature, want_entropy=True, form=form)


def gradients(model: Any, form: LogprobForm) -> dict[str, torch.Tensor]:
    model.zero_grad()
    values = compute(model, form, 0.7).logprobs
    (values * torch.linspace(-1, 1, len(values))).sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_each_form_gives_the_logprobs_and_entropies_of_the_definition(
    build: Any, family: str, temperature: float
) -> None:
    model = build(family)
    with torch.no_grad():
        expected, entropies = plainly(model, temperature)
        for form in (SHARED, PARTS, PADDED, OWN):
            found = compute(model, form, temperature)
            assert found.entropy is not None
            assert found.logprobs.dtype == torch.float32
            torch.testing.assert_close(found.logprobs.double(), expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(found.entropy.double(), entropies, atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", [SHARED, PARTS])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_shared_prefix_and_padded_gradients_agree(build: Any, family: str, form: LogprobForm) -> None:
    model = build(family, tie_word_embeddings=family == "Qwen2")
    shared, padded = gradients(model, form), gradients(model, PADDED)
    scale = max(float(gradient.abs().max()) for gradient in padded.values())
    for name, gradient in shared.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradient / scale, padded[name] / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk", [1, 5])
def test_chunks_change_nothing(build: Any, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    model = build()
    whole, whole_gradients = compute(model, SHARED), gradients(model, SHARED)
    monkeypatch.setattr(module, "CHUNK_LOGITS", chunk * 64)
    heights: list[int] = []
    hook = model.lm_head.register_forward_hook(lambda _, inputs, __: heights.append(inputs[0].shape[0]))
    pieces, piece_gradients = compute(model, SHARED), gradients(model, SHARED)
    hook.remove()
    assert max(heights) == chunk
    torch.testing.assert_close(pieces.logprobs, whole.logprobs, atol=1e-6, rtol=0)
    torch.testing.assert_close(pieces.entropy, whole.entropy, atol=1e-6, rtol=0)
    for name, gradient in piece_gradients.items():
        torch.testing.assert_close(gradient, whole_gradients[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("chunk", [3, 1000])
@pytest.mark.parametrize("form", [SHARED, OWN])
def test_the_gradient_of_the_entropy(
    build: Any, monkeypatch: pytest.MonkeyPatch, form: LogprobForm, chunk: int
) -> None:
    monkeypatch.setattr(module, "CHUNK_LOGITS", chunk * 64)
    model = build()
    plainly(model, 0.7)[1].sum().backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    found = completion_logprobs(model, GROUPS, 0.7, want_entropy=True, form=form, entropy_gradient=True).entropy
    assert found is not None
    found.sum().backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", [SHARED, PARTS])
def test_a_completion_neither_sees_its_neighbours_nor_the_padding(build: Any, form: LogprobForm) -> None:
    model = build()
    with torch.no_grad():
        alone = completion_logprobs(model, [PackedGroup([5, 6], [[7, 8, 9]])], 1.0, False, form=form)
        amid = [PackedGroup([5, 6], [[50, 51, 52, 53], [7, 8, 9], [54, 55]]), PackedGroup([60] * 30, [[1, 2], [3, 4]])]
        together = completion_logprobs(model, amid, 1.0, False, form=form)
    assert alone.entropy is None
    torch.testing.assert_close(together.logprobs[4:7], alone.logprobs, atol=1e-5, rtol=0)


def test_entropy_carries_no_gradient_and_no_head_is_computed_for_prompts(build: Any) -> None:
    model = build()
    heights: list[int] = []
    model.lm_head.register_forward_hook(lambda _, inputs, __: heights.append(inputs[0].shape[0]))
    found = compute(model, SHARED)
    assert found.entropy is not None
    assert not found.entropy.requires_grad
    assert heights == [sum(len(ids) for group in GROUPS for ids in group.completions)]


@pytest.mark.parametrize(
    ("family", "shared", "by_parts", "chunked"),
    [
        ("Llama", True, True, True),
        ("Gemma2", True, False, True),  # caps its attention logits
        ("Granite", True, True, False),
        ("Mamba", False, False, True),
    ],
)
def test_what_a_model_allows_is_found_by_trying(
    build: Any, caplog: pytest.LogCaptureFixture, family: str, shared: bool, by_parts: bool, chunked: bool
) -> None:
    model = build(family)
    with caplog.at_level(logging.WARNING):
        form = inspect_model(model, longest=12)
    assert (form.shared_prefix, form.by_parts, form.chunked_head) == (shared, by_parts, chunked)
    assert ("used without" in caplog.text) == (not (shared and chunked))
    with torch.no_grad():
        expected, _ = plainly(model, 0.8)
        torch.testing.assert_close(compute(model, form, 0.8).logprobs.double(), expected, atol=1e-5, rtol=0)


def test_attention_by_parts_never_looks_at_another_completion(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, int]] = []
    kernel = prefix_attention._forward

    def counting(query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        looked.append((query.shape[2], key.shape[2]))
        return kernel(query, key, *rest, **options)

    monkeypatch.setattr(prefix_attention, "_forward", counting)
    model = build()
    completion_logprobs(model, [PackedGroup([1, 2, 3], [[4, 5, 6], [7], [8, 9, 10, 11]])], 1.0, False, form=PARTS)
    once = [(3, 3), (2, 2), (3, 3), (5, 3)]  # the prompt, each completion with tokens in the row, these to the prompt
    assert looked == once * model.config.num_hidden_layers


def test_attention_by_parts_is_for_a_form_that_is_used_on_a_cpu(build: Any) -> None:
    form = inspect_model(build(), longest=12, device=torch.device("cuda"))
    assert (form.shared_prefix, form.by_parts, form.row_crossover) == (True, False, form.crossover)


def test_soft_capped_logits_need_their_cap(build: Any) -> None:
    model = build("Gemma2")
    form = inspect_model(model, longest=12)
    assert form.softcap == 3.0
    with torch.no_grad():
        bare = compute(model, replace(form, softcap=None)).logprobs
        assert (bare - compute(model, form).logprobs).abs().max() > 0.1


def test_a_sliding_window_allows_sharing_up_to_its_length(build: Any) -> None:
    model = build("Mistral")  # window 16
    assert inspect_model(model, longest=16).shared_prefix
    assert not inspect_model(model, longest=17).shared_prefix
    assert not inspect_model(model).shared_prefix
    groups = [PackedGroup(list(range(3, 15)), [list(range(20, 30)), list(range(30, 38))])]
    with torch.no_grad():
        padded = completion_logprobs(model, groups, 1.0, False, form=PADDED).logprobs
        shared = completion_logprobs(model, groups, 1.0, False, form=SHARED).logprobs
    assert (padded - shared).abs().max() > 1e-3  # the reason for the limit


def test_inspecting_draws_no_random_number(build: Any) -> None:
    before = torch.get_rng_state()
    inspect_model(build(), longest=12)
    assert torch.equal(torch.get_rng_state(), before)


def test_crossover_by_hand(build: Any) -> None:
    # Per layer: q, o 32*32 each, k, v 32*16 each, mlp 3*32*64, two norms of 32; then a norm and the head 64*32.
    weights = 2 * (2 * 1024 + 2 * 512 + 6144 + 64) + 32 + 2048
    assert attention_crossover(build()) == weights / (2 * 32 * 2)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_no_temperature_no_logprobs(build: Any, temperature: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        compute(build(), SHARED, temperature)
