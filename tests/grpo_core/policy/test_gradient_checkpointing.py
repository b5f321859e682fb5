from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from grpo_core.errors import UserError
from grpo_core.policy import logprobs
from grpo_core.policy.batching import PackedGroup
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.form import inspect_model
from grpo_core.policy.layers import decoder_layers, gradient_of_rows, recomputed_layers, recomputed_products
from grpo_core.policy.optimizer import new_trainer_state, save_trainer_state
from grpo_core.policy.update import update_policy

GROUPS = [
    PackedGroup([5, 6, 7], [[8, 9, 10, 11], [12, 13], [14]]),
    PackedGroup([20, 21], [[22, 23, 24], [25, 26, 27, 28, 29]]),
]


def gradients(model: Any, inside: AbstractContextManager[None]) -> tuple[dict[str, torch.Tensor], int]:
    """Gradients of a loss of logprobs and entropy by name, and the bytes that were held for the backward pass."""
    held = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal held
        held += 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
        return tensor

    model.zero_grad(set_to_none=True)
    form = inspect_model(model, 40)
    with inside:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found = logprobs.completion_logprobs(model, GROUPS, 0.8, True, form=form, entropy_gradient=True)
        assert found.entropy is not None
        (found.logprobs.square().sum() + found.entropy.sum()).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}, held


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma2"])
@pytest.mark.parametrize("chunks", [False, True])
def test_gradients_are_the_same_to_the_bit(
    build: Callable[..., Any], family: str, chunks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunks:
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 4 * 64)  # four targets a chunk
    model = build(family, attention_dropout=0.5)  # which training mode would apply
    plain, held = gradients(model, nullcontext())
    again, held_again = gradients(model, recomputed_layers(model))
    assert plain.keys() == again.keys()
    assert len(plain) == len(list(model.parameters()))
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert held_again < held / 2


def test_layers_are_computed_twice_and_only_where_there_is_a_backward_pass(build: Callable[..., Any]) -> None:
    model, seen = build(), 0

    def count(*_: Any) -> None:
        nonlocal seen
        seen += 1

    for layer in decoder_layers(model):
        layer.self_attn.register_forward_hook(count)
    ids = torch.tensor([[3, 4, 5]])
    with recomputed_layers(model):
        names = list(model.state_dict())
        model(input_ids=ids).logits.sum().backward()
        assert seen == 4  # two layers
        with torch.no_grad():
            model(input_ids=ids)
        assert seen == 6
    model(input_ids=ids).logits.sum().backward()
    assert seen == 8
    assert names == list(model.state_dict())
    assert not any("forward" in vars(layer) for layer in decoder_layers(model))


def test_an_update_ends_with_the_same_bytes(build: Callable[..., Any], rollouts_of: Any, tmp_path: Any) -> None:
    for again in (False, True):
        config = UpdateConfig(learning_rate=1e-2, epochs=2, minibatches=2, gradient_checkpointing=again)
        model = build()
        state = new_trainer_state(model, 0)
        update_policy(
            model, lambda: build(seed=1), rollouts_of(), state, config, temperature=1.0, seed=0, round_number=1
        )
        save_trainer_state(tmp_path / str(again), model, state, master_weights=True)
    files = sorted(path.name for path in (tmp_path / "True").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "False").iterdir())
    for name in files:
        assert (tmp_path / "True" / name).read_bytes() == (tmp_path / "False" / name).read_bytes()


def test_a_model_without_such_layers_is_refused_by_one_sentence() -> None:
    with pytest.raises(UserError, match=r"names no layers of Linear .*update\.gradient_checkpointing"):
        decoder_layers(nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma", "Gemma2"])
def test_products_made_again_change_no_bit(build: Callable[..., Any], family: str) -> None:
    model = build(family)
    plain, held = gradients(model, nullcontext())
    again, held_again = gradients(model, recomputed_products(model))
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    wide = model.config.intermediate_size
    # act(gate), the product and, for some activations, more of that width
    assert held - held_again >= 2 * 4 * wide * model.config.num_hidden_layers * sum(g.tokens for g in GROUPS)
    assert not any("forward" in vars(module) for module in model.modules())


def test_blocks_that_do_something_else_between_the_products_are_left_alone(build: Callable[..., Any]) -> None:
    model = build()
    kind = type(model.model.layers[0].mlp)

    class Clamped(kind):  # type: ignore[misc, valid-type]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down_proj((self.act_fn(self.gate_proj(x)) * self.up_proj(x)).clamp(-1, 1))  # type: ignore[no-any-return]

    model.model.layers[0].mlp.__class__ = Clamped
    with recomputed_products(model):
        assert ["forward" in vars(layer.mlp) for layer in model.model.layers] == [False, True]


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma", "Gemma2"])
def test_gradients_of_a_tied_embedding_are_the_same_row_by_row(build: Callable[..., Any], family: str) -> None:
    model = build(family, tie_word_embeddings=True)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    form = inspect_model(model, 40)
    found = []
    for inside in (nullcontext(), gradient_of_rows(model)):
        model.zero_grad(set_to_none=True)
        with inside:
            for _ in range(2):  # the second is added to what is there
                logprobs.completion_logprobs(model, GROUPS, 0.8, False, form=form).logprobs.sum().backward()
        found.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    for name, expected in found[0].items():
        assert found[1][name].layout == torch.strided
        torch.testing.assert_close(found[1][name], expected, atol=1e-5, rtol=1e-5)
    assert not model.get_input_embeddings().sparse
