from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.errors import UserError
from grpo_core.policy.batching import PackedGroup
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.logprobs import LogprobForm, completion_logprobs
from grpo_core.policy.value import (
    VALUE_FILE,
    ValueHead,
    ValueState,
    build_value_optimizer,
    load_value_state,
    new_value_state,
    save_value_state,
    value_loss_sum,
)

GROUPS = [
    PackedGroup([5, 6, 7, 8, 9], [[10, 11, 12], [13], [14, 15, 16, 17, 18, 19, 2], [10, 11, 20]]),
    PackedGroup([1, 3], [[30, 31, 32, 33], [34, 35]]),
]
SHARED = LogprobForm(shared_prefix=True, chunked_head=True, softcap=None, crossover=100.0)
FORMS = [SHARED, replace(SHARED, shared_prefix=False), replace(SHARED, shared_prefix=False, chunked_head=False)]


def random_head(size: int = 32) -> ValueHead:
    head = ValueHead(size)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw))
    return head


# -- the loss --


def test_the_clipped_value_loss_by_hand() -> None:
    # (V, old V, R) with a bound of 0.2, and half of the larger square:
    #   0.8, 0.5, 1.0: held at 0.7, max(0.04, 0.09) / 2 = 0.045, and no gradient: it has gone far enough
    #   0.8, 0.5, 0.6: held at 0.7, max(0.04, 0.01) / 2 = 0.02, gradient 0.2
    #   0.4, 0.5, 1.0: inside,      0.36 / 2            = 0.18, gradient -0.6
    #   0.1, 0.5, 0.0: held at 0.3, max(0.01, 0.09) / 2 = 0.045, no gradient
    values = torch.tensor([0.8, 0.8, 0.4, 0.1], requires_grad=True)
    old, returns = torch.tensor([0.5, 0.5, 0.5, 0.5]), torch.tensor([1.0, 0.6, 1.0, 0.0])
    loss = value_loss_sum(values, old, returns, 0.2)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.045 + 0.02 + 0.18 + 0.045, abs=1e-6)
    assert values.grad is not None
    torch.testing.assert_close(values.grad[1], torch.tensor(0.2))
    assert values.grad[[0, 3]].tolist() == [0.0, 0.0]
    # Inside the bound both squares are the same one; torch gives half of the gradient to each.
    torch.testing.assert_close(values.grad[2], torch.tensor(-0.6))


def test_without_a_bound_it_is_half_the_squared_error() -> None:
    values, returns = torch.tensor([0.8, 0.1]), torch.tensor([1.0, 0.5])
    assert float(value_loss_sum(values, torch.full((2,), 0.5), returns, None)) == pytest.approx(0.02 + 0.08)


# -- where the values come from --


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Granite"])
def test_each_form_reads_the_hidden_states_that_predict_each_token(build: Any, family: str) -> None:
    model, head = build(family), random_head()
    plain = []
    with torch.no_grad():
        for group in GROUPS:
            for completion in group.completions:
                hidden = model.base_model(torch.tensor([[*group.prompt_ids, *completion]])).last_hidden_state[0]
                plain.append(head(hidden[len(group.prompt_ids) - 1 : -1]))
        for form in FORMS:
            found = completion_logprobs(model, GROUPS, 1.0, want_entropy=False, form=form, want_hidden=True)
            without = completion_logprobs(model, GROUPS, 1.0, want_entropy=False, form=form)
            assert found.hidden is not None
            torch.testing.assert_close(head(found.hidden), torch.cat(plain), atol=1e-5, rtol=0)
            assert torch.equal(found.logprobs, without.logprobs)
            assert without.hidden is None


def test_each_form_gives_the_trunk_the_same_gradient_of_the_values(build: Any) -> None:
    gradients = []
    for form in FORMS:
        model, head = build(), random_head()
        found = completion_logprobs(model, GROUPS, 1.0, want_entropy=False, form=form, want_hidden=True)
        assert found.hidden is not None
        head(found.hidden).square().mean().backward()
        gradients.append({name: w.grad for name, w in model.named_parameters() if w.grad is not None})
    assert "lm_head.weight" not in gradients[0]
    scale = max(float(gradient.abs().max()) for gradient in gradients[0].values())
    for others in gradients[1:]:
        assert others.keys() == gradients[0].keys()
        for name, gradient in others.items():
            torch.testing.assert_close(gradient / scale, gradients[0][name] / scale, atol=1e-5, rtol=0)


def test_a_new_head_says_zero_and_computes_in_float32() -> None:
    values = ValueHead(4)(torch.ones(3, 4, dtype=torch.bfloat16))
    assert values.dtype == torch.float32
    assert values.tolist() == [0.0, 0.0, 0.0]


# -- the state on disk --


def stepped(model: Any) -> ValueState:
    state = new_value_state(model)
    optimizer = build_value_optimizer(state, UpdateConfig())
    state.head(torch.arange(64.0).reshape(2, 32)).sum().backward()
    optimizer.step()
    state.step += 1
    return state


def test_a_saved_head_is_the_same_one_and_has_the_same_bytes(build: Any, tmp_path: Path) -> None:
    model = build()
    state = stepped(model)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    save_value_state(folders[0], state)
    found = load_value_state(folders[0], model)
    assert found is not None
    assert found.step == 1
    for name, weight in state.head.state_dict().items():
        assert torch.equal(found.head.state_dict()[name], weight)
        assert torch.equal(found.exp_avg[name], state.exp_avg[name])
        assert torch.equal(found.exp_avg_sq[name], state.exp_avg_sq[name])
        assert state.exp_avg_sq[name].any()  # the optimiser has written into the state's own tensors
    save_value_state(folders[1], found)
    assert (folders[1] / VALUE_FILE).read_bytes() == (folders[0] / VALUE_FILE).read_bytes()


def test_no_file_no_head_and_another_width_is_refused(build: Any, tmp_path: Path) -> None:
    model = build()
    assert load_value_state(tmp_path, model) is None
    save_value_state(tmp_path, stepped(model))
    with pytest.raises(UserError, match="another width"):
        load_value_state(tmp_path, build(hidden_size=16))
