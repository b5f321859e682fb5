import json
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.errors import UserError
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.optimizer import (
    build_optimizer,
    learning_rate_at,
    load_trainer_state,
    new_trainer_state,
    random_numbers,
    save_trainer_state,
)


def test_warm_up_then_constant() -> None:
    config = UpdateConfig(learning_rate=8e-6, warmup_steps=4)
    assert [learning_rate_at(step, config) for step in (0, 1, 2, 3, 4, 1000)] == [2e-6, 4e-6, 6e-6, 8e-6, 8e-6, 8e-6]
    assert learning_rate_at(0, UpdateConfig(learning_rate=1e-6)) == 1e-6


def test_one_step_of_adamw_by_hand() -> None:
    # First step, bias-corrected: m = g, v = g^2, so w - lr * wd * w - lr * g / (|g| + eps); the bias does not decay.
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(0.5)
    config = UpdateConfig(learning_rate=0.1, weight_decay=0.01, adam_epsilon=1.0)
    state = new_trainer_state(model, seed=0)
    optimizer = build_optimizer(model, state, config)
    model.weight.grad, model.bias.grad = torch.tensor([[3.0, -1.0]]), torch.tensor([1.0])
    optimizer.step()
    expected = torch.tensor([[0.999 - 0.1 * 3 / 4, -1.998 + 0.1 * 1 / 2]])
    torch.testing.assert_close(model.weight.detach(), expected)
    torch.testing.assert_close(model.bias.detach(), torch.tensor([0.5 - 0.1 / 2]))
    torch.testing.assert_close(state.exp_avg["weight"], torch.tensor([[0.3, -0.1]]))  # written in place
    torch.testing.assert_close(state.exp_avg_sq["weight"], torch.tensor([[0.009, 0.001]]))


def test_an_optimizer_built_anew_each_round_goes_on_where_it_was() -> None:
    # Against torch's AdamW kept alive: the moments and the count of their bias correction carry over.
    config = UpdateConfig(learning_rate=0.1)
    ours, kept = torch.nn.Linear(3, 1, bias=False), torch.nn.Linear(3, 1, bias=False)
    kept.load_state_dict(ours.state_dict())
    state = new_trainer_state(ours, seed=0)
    straight = torch.optim.AdamW(kept.parameters(), lr=0.1, betas=config.betas, eps=1e-8, weight_decay=0.0)
    for step in range(4):
        gradient = torch.tensor([[1.0, -2.0, 0.1 * step]])
        ours.weight.grad, kept.weight.grad = gradient.clone(), gradient.clone()
        build_optimizer(ours, state, config).step()
        state.step += 1
        straight.step()
        torch.testing.assert_close(ours.weight, kept.weight)


def test_tied_weights_appear_once(build: Any) -> None:
    tied, untied = build(tie_word_embeddings=True), build(tie_word_embeddings=False)
    assert "lm_head.weight" not in new_trainer_state(tied, 0).exp_avg
    assert "lm_head.weight" in new_trainer_state(untied, 0).exp_avg


def filled(model: Any, step: int = 5) -> Any:
    state = new_trainer_state(model, seed=1)
    state.step = step
    for number, name in enumerate(state.exp_avg):
        state.exp_avg[name].fill_(number + 0.5)
        state.exp_avg_sq[name].fill_(number + 0.25)
    return state


@pytest.mark.parametrize("file_bytes", [2**31, 20_000])
def test_saved_and_loaded_is_the_same_and_has_the_same_bytes(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int
) -> None:
    monkeypatch.setattr("grpo_core.policy.optimizer._FILE_BYTES", file_bytes)
    model = build()
    state = filled(model)
    save_trainer_state(tmp_path / "one", model, state, master_weights=False)
    torch.rand(3)  # what else the process draws must not show
    save_trainer_state(tmp_path / "two", model, state, master_weights=False)
    loaded = load_trainer_state(tmp_path / "one", model)
    save_trainer_state(tmp_path / "three", model, loaded, master_weights=False)
    one, two, three = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two", "three"))
    assert one == two == three
    assert len(one) == 3 if file_bytes == 2**31 else len(one) > 5
    assert loaded.step == 5
    assert list(loaded.exp_avg) == list(state.exp_avg)
    for name, moment in state.exp_avg.items():
        assert torch.equal(loaded.exp_avg[name], moment)
        assert torch.equal(loaded.exp_avg_sq[name], state.exp_avg_sq[name])


def test_master_weights_bring_back_what_bfloat16_loses(build: Any, tmp_path: Path) -> None:
    model = build(tie_word_embeddings=True)
    save_trainer_state(tmp_path, model, new_trainer_state(model, 0), master_weights=True)
    other = build(tie_word_embeddings=True)
    other.to(torch.bfloat16).float()  # as a policy saved in bfloat16 and loaded for training
    expected = model.state_dict()
    assert not all(torch.equal(weight, expected[name]) for name, weight in other.state_dict().items())
    load_trainer_state(tmp_path, other)
    assert all(torch.equal(weight, expected[name]) for name, weight in other.state_dict().items())
    assert other.lm_head.weight is other.model.embed_tokens.weight


def test_only_float32_is_trained(build: Any) -> None:
    with pytest.raises(ValueError, match="load the policy in float32"):
        new_trainer_state(build().to(torch.bfloat16), seed=0)


def test_a_missing_or_foreign_state_is_refused(build: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer_state\.json"):
        load_trainer_state(tmp_path, build())
    model = build()
    save_trainer_state(tmp_path, model, new_trainer_state(model, 0), master_weights=False)
    with pytest.raises(UserError, match="another model"):
        load_trainer_state(tmp_path, build(num_hidden_layers=1))
    with pytest.raises(UserError, match="another shape for parameter"):
        load_trainer_state(tmp_path, build(intermediate_size=32))
    with pytest.raises(ValueError, match="other parameters"):
        build_optimizer(model, new_trainer_state(build(num_hidden_layers=1), 0), UpdateConfig())
    (tmp_path / "trainer_state.json").write_text("{")
    with pytest.raises(UserError, match="can't be read"):
        load_trainer_state(tmp_path, model)


def test_random_numbers_carry_over_and_disturb_nobody(build: Any, tmp_path: Path) -> None:
    model, cpu = build(), torch.device("cpu")
    straight, saved = new_trainer_state(model, seed=4), new_trainer_state(model, seed=4)
    with random_numbers(straight, cpu, seed=4):
        expected = [torch.rand(2), torch.rand(2)]
    torch.manual_seed(9)
    outside = torch.get_rng_state()
    with random_numbers(saved, cpu, seed=4):
        first = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), outside)
    save_trainer_state(tmp_path, model, saved, master_weights=False)
    with random_numbers(load_trainer_state(tmp_path, model), cpu, seed=4):
        second = torch.rand(2)
    assert torch.equal(torch.stack([first, second]), torch.stack(expected))
    assert not torch.equal(new_trainer_state(model, seed=5).rng_cpu, new_trainer_state(model, seed=4).rng_cpu)


def test_the_index_reads_by_eye(build: Any, tmp_path: Path) -> None:
    model = build()
    save_trainer_state(tmp_path, model, filled(model, step=12), master_weights=False)
    index = json.loads((tmp_path / "trainer_state.json").read_text())
    assert index["step"] == 12
    assert index["parameters"]["model.norm.weight"] == "optimizer-00000.safetensors"
