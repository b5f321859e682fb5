import math
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support import loads

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.optimizer import TrainerState, load_trainer_state, new_trainer_state, save_trainer_state
from grpo_core.policy.update import NonFiniteUpdate, UpdateConfig, UpdateMetrics, update_policy
from grpo_core.schemas import REFERENCE

LN2, LN8 = math.log(2), math.log(8)
FREE = 1e9  # a norm that never clips: exp_avg / (1 - beta1) of the first step is then the gradient itself


def update(
    model: Any,
    reference: Any,
    rollouts: list[TrainingRollout],
    config: UpdateConfig,
    state: TrainerState | None = None,
    round_number: int = 1,
    **options: Any,
) -> tuple[UpdateMetrics, TrainerState]:
    state = state or new_trainer_state(model, seed=0)
    settings = {"temperature": 1.0, "seed": 0, "round_number": round_number} | options
    return update_policy(model, loads(reference), rollouts, state, config, **settings), state


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def mean_logprob(model: Any, rollout: TrainingRollout) -> float:
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
    with torch.no_grad():
        distribution = model(ids).logits[0, len(rollout.prompt_ids) - 1 : -1].log_softmax(-1)
    return float(distribution.gather(-1, torch.tensor(rollout.completion_ids)[:, None]).mean())


# -- the objective on numbers worked out by hand --


@pytest.fixture
def uniform(build: Any) -> Any:
    """A policy of eight tokens that gives each the logprob -ln 8, whatever stands before it."""
    model = build(vocab_size=8)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    return model


def hand_rollout(prompt_id: str, tokens: int, ratio: float, advantage: float, reference: float) -> TrainingRollout:
    """The ratio is 1/8 over the old probability; ``reference`` is ln(reference probability * 8)."""
    old = np.full(tokens, -LN8 - math.log(ratio))
    prompt = [1, 2, 3] if prompt_id == "a" else [4, 5]
    ids = np.arange(tokens) % 5 + 3
    return TrainingRollout(prompt_id, prompt, ids, old, advantage, ref_logprobs=np.full(tokens, -LN8 + reference))


HAND = [
    hand_rollout("a", 1, 1.5, 1.0, LN2),  #  1 token  of -1.2 (held at 1 + 0.2)     k3 = 2 - ln 2 - 1 each
    hand_rollout("a", 3, 0.5, -1.0, LN2),  # 3 tokens of +0.8 (held at 1 - 0.2)
    hand_rollout("b", 2, 1.0, 2.0, 0.0),  #  2 tokens of -2.0                       k3 = 0
    hand_rollout("b", 4, 1.1, -0.5, 0.0),  # 4 tokens of +0.55
]


@pytest.mark.parametrize("tokens_per_microbatch", [1, 9, 8192])
def test_the_objective_by_hand_normalised_by_the_tokens_of_the_step(uniform: Any, tokens_per_microbatch: int) -> None:
    calls: list[tuple[int, int]] = []
    config = UpdateConfig(tokens_per_microbatch=tokens_per_microbatch, direction_groups=0)
    found, _ = update(uniform, None, HAND, config, progress=lambda done, total: calls.append((done, total)))
    assert found.steps == 1
    assert found.tokens == 10
    # (-1.2 + 3 * 0.8 - 2 * 2.0 + 4 * 0.55) / 10; a mean of means per completion would be -0.4625.
    assert found.policy_loss == pytest.approx(-0.06, abs=1e-6)
    assert found.kl == pytest.approx(4 * (1 - LN2) / 10, abs=1e-6)
    assert found.loss == pytest.approx(-0.06 + 0.04 * 0.4 * (1 - LN2), abs=1e-6)
    assert found.clip_ratio_high == pytest.approx(1 / 10)
    assert found.clip_ratio_low == pytest.approx(3 / 10)
    assert found.clip_ratio == pytest.approx(4 / 10)
    assert found.ratio_mean == pytest.approx((1.5 + 3 * 0.5 + 2 + 4 * 1.1) / 10, abs=1e-6)
    assert found.ratio_max == pytest.approx(1.5, abs=1e-6)
    assert found.sampler_logprob_drift == pytest.approx((math.log(1.5) + 3 * LN2 + 4 * math.log(1.1)) / 10, abs=1e-6)
    assert found.entropy == pytest.approx(LN8, abs=1e-6)
    assert calls == [(n + 1, {1: 4, 9: 2, 8192: 1}[tokens_per_microbatch]) for n in range(len(calls))]
    assert calls[-1][0] == calls[-1][1]


def test_the_gradient_by_hand(uniform: Any) -> None:
    # One token y of advantage 1, ratio 1, no KL: d loss / d logits = softmax - onehot(y), so the gradient of the head's
    # row v is (1/8 - [v = y]) times the hidden state that predicts it.
    rollout = hand_rollout("b", 1, 1.0, 1.0, 0.0)
    with torch.no_grad():
        hidden = uniform.model(torch.tensor([[4, 5]])).last_hidden_state[0, -1]
    _, state = update(uniform, None, [rollout], UpdateConfig(kl_coef=0, max_grad_norm=FREE))
    wanted = torch.full((8, 1), 1 / 8)
    wanted[3] -= 1
    torch.testing.assert_close(state.exp_avg["lm_head.weight"] / 0.1, wanted * hidden, atol=1e-6, rtol=1e-4)


def test_temperature_is_inside_the_logprobs(uniform: Any) -> None:
    # Logits / T: the same gradient, divided by T.
    rollout = hand_rollout("b", 1, 1.0, 1.0, 0.0)
    config = UpdateConfig(kl_coef=0, max_grad_norm=FREE)
    gradients = [
        update(model, None, [rollout], config, temperature=temperature)[1].exp_avg["lm_head.weight"]
        for model, temperature in ((uniform, 1.0), (_zero_headed_copy(uniform), 0.5))
    ]
    torch.testing.assert_close(gradients[1], 2 * gradients[0])


def _zero_headed_copy(model: Any) -> Any:
    copy = type(model)(model.config).eval()
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        copy.lm_head.weight.zero_()
    return copy


def naive_gradient(model: Any, reference: Any, rollouts: list[TrainingRollout]) -> dict[str, torch.Tensor]:
    """The objective read off the paper: a loop over completions and tokens, then one division."""
    model.zero_grad()
    total, tokens = torch.zeros(()), 0
    for r in rollouts:
        ids = torch.tensor([[*r.prompt_ids, *r.completion_ids]])
        start, targets = len(r.prompt_ids) - 1, torch.tensor(r.completion_ids)
        with torch.no_grad():
            ref = reference(ids).logits[0, start:-1].log_softmax(-1)
        new = model(ids).logits[0, start:-1].log_softmax(-1)
        for place, target in enumerate(targets):
            ratio = (new[place, target] - float(r.old_logprobs[place])).exp()
            d = ref[place, target] - new[place, target]
            total = (
                total - torch.min(ratio * r.advantage, ratio.clamp(0.8, 1.2) * r.advantage) + 0.04 * (d.exp() - d - 1)
            )
            tokens += 1
    (total / tokens).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("tokens_per_microbatch", [1, 30, 8192])
@pytest.mark.parametrize("family", ["Llama", "Mamba"])
def test_gradient_equals_the_naive_one_whatever_the_micro_batch(
    build: Any, rollouts_of: Any, tokens_per_microbatch: int, family: str
) -> None:
    model, reference, rollouts = build(family), build(family, seed=1), rollouts_of()
    expected = naive_gradient(model, reference, rollouts)
    config = UpdateConfig(tokens_per_microbatch=tokens_per_microbatch, max_grad_norm=FREE)
    found, state = update(model, reference, rollouts, config)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(state.exp_avg[name] / 0.1 / scale, gradient / scale, atol=1e-5, rtol=0)
    norm = math.sqrt(sum(float(gradient.double().pow(2).sum()) for gradient in expected.values()))
    assert found.grad_norm == pytest.approx(norm, rel=1e-4)


def test_gradients_are_clipped_to_the_norm(build: Any, rollouts_of: Any) -> None:
    config = UpdateConfig(max_grad_norm=0.01, kl_coef=0)
    found, state = update(build(), None, rollouts_of(), config)
    assert found.grad_norm is not None
    assert found.grad_norm > 0.01
    norm = math.sqrt(sum(float((m / 0.1).double().pow(2).sum()) for m in state.exp_avg.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)


# -- learning --


def test_rewarded_completions_become_likelier_and_punished_ones_less_so(build: Any, rollouts_of: Any) -> None:
    model = build()
    rollouts = [replace(r, advantage=1.0 if n % 2 else -1.0) for n, r in enumerate(rollouts_of(groups=2, size=2))]
    before = [mean_logprob(model, r) for r in rollouts]
    config = UpdateConfig(learning_rate=1e-2, epochs=3, old_logprobs="trainer", kl_coef=0)
    found, _ = update(model, None, rollouts, config)
    after = [mean_logprob(model, r) for r in rollouts]
    assert found.steps == 3
    assert all((a > b) == (r.advantage > 0) for a, b, r in zip(after, before, rollouts, strict=True))


def test_the_kl_alone_pulls_towards_the_reference(build: Any, rollouts_of: Any) -> None:
    model, reference = build(), build(seed=1)
    rollouts = [replace(r, advantage=0.0) for r in rollouts_of()]
    config = UpdateConfig(learning_rate=3e-3, epochs=8, kl_coef=1.0, old_logprobs="trainer")
    first, state = update(model, reference, rollouts, replace_config(config, epochs=1))
    update(model, reference, rollouts, config, state)
    last, _ = update(model, reference, rollouts, replace_config(config, epochs=1), state)
    assert last.kl is not None
    assert first.kl is not None
    assert last.kl < 0.7 * first.kl


def replace_config(config: UpdateConfig, **changes: Any) -> UpdateConfig:
    return UpdateConfig(**(config.model_dump() | changes))


def test_the_reference_is_gone_before_the_first_step_and_what_it_said_is_told(build: Any, rollouts_of: Any) -> None:
    found: list[Any] = []
    there: list[Any] = []

    def load() -> Any:
        reference = build(seed=1)
        there.append(weakref.ref(reference))
        return reference

    rollouts = [replace(r, rollout_id=f"r{n}", sample_index=n) for n, r in enumerate(rollouts_of())]
    dead = [replace(r, rollout_id=f"d{n}", prompt_id="dead", in_loss=False) for n, r in enumerate(rollouts)]
    model = build()
    update_policy(
        model, load, [*rollouts, *dead], new_trainer_state(model, seed=0), UpdateConfig(minibatches=2),
        temperature=1.0, seed=0, round_number=7, on_reference=found.append,
        on_step=lambda _: there.append(there[0]()),
    )  # fmt: skip
    assert there[1:] == [None, None]
    (table,) = found
    assert table.schema == REFERENCE
    assert table["round"].to_pylist() == [7] * len(rollouts)
    told = dict(zip(table["rollout_id"].to_pylist(), table["ref_logprobs"].to_pylist(), strict=True))
    assert set(told) == {rollout.rollout_id for rollout in rollouts}
    for rollout in rollouts:
        ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
        start = len(rollout.prompt_ids) - 1
        expected = build(seed=1)(ids).logits[0, start:-1].log_softmax(-1).gather(1, ids[0, start + 1 :, None])[:, 0]
        assert told[rollout.rollout_id] == pytest.approx(expected.tolist(), abs=1e-5)


def test_without_kl_no_reference_is_loaded_and_nothing_told(build: Any, rollouts_of: Any) -> None:
    model = build()
    update_policy(
        model, lambda: pytest.fail("loaded"), rollouts_of(), new_trainer_state(model, seed=0), UpdateConfig(kl_coef=0),
        temperature=1.0, seed=0, round_number=1, on_reference=lambda _: pytest.fail("told"),
    )  # fmt: skip


# -- what is in the loss --


def test_dead_groups_are_never_computed(build: Any, rollouts_of: Any) -> None:
    live = rollouts_of()
    dead = [replace(r, prompt_id=f"dead {r.prompt_id}", advantage=0.0, in_loss=False) for r in rollouts_of(seed=3)]
    one, two, reference = build(), build(), build(seed=1)
    with_dead, _ = update(one, reference, [*dead, *live], UpdateConfig(learning_rate=1e-3, minibatches=2))
    without, _ = update(two, reference, live, UpdateConfig(learning_rate=1e-3, minibatches=2))
    assert with_dead == without
    assert same(weights(one), weights(two))


def test_no_rollout_in_the_loss_no_step(build: Any, rollouts_of: Any) -> None:
    model = build()
    before = weights(model)
    calls: list[int] = []
    rollouts = [replace(r, in_loss=False) for r in rollouts_of()]
    found, state = update(model, None, rollouts, UpdateConfig(), progress=lambda done, total: calls.append(done))
    assert found.as_dict() == {"steps": 0.0, "tokens": 0.0}
    assert state.step == 0
    assert calls == []
    assert same(weights(model), before)


def test_truncated_completions_are_kept_or_masked_by_choice(build: Any, rollouts_of: Any) -> None:
    rollouts = [replace(r, truncated=n % 3 == 0) for n, r in enumerate(rollouts_of())]
    whole = [r for r in rollouts if not r.truncated]
    masked, _ = update(build(), None, rollouts, UpdateConfig(kl_coef=0, mask_truncated=True))
    only, _ = update(build(), None, whole, UpdateConfig(kl_coef=0))
    kept, _ = update(build(), None, rollouts, UpdateConfig(kl_coef=0))
    assert masked == only
    assert masked.tokens == sum(len(r.completion_ids) for r in whole)
    assert kept.tokens == sum(len(r.completion_ids) for r in rollouts)


def test_steps_are_epochs_times_minibatches_and_never_empty(build: Any, rollouts_of: Any) -> None:
    config = UpdateConfig(epochs=3, minibatches=2, kl_coef=0, warmup_steps=4, learning_rate=1e-6)
    found, state = update(build(), None, rollouts_of(groups=3), config)
    assert (found.steps, state.step) == (6, 6)
    assert found.learning_rate == 1e-6
    found, state = update(build(), None, rollouts_of(groups=2), replace_config(config, minibatches=8, epochs=1))
    assert (found.steps, state.step) == (2, 2)
    assert found.learning_rate == pytest.approx(0.5e-6)


# -- old and reference logprobs --


def test_old_logprobs_of_the_trainer_start_at_a_ratio_of_one(build: Any, rollouts_of: Any) -> None:
    rollouts, model = rollouts_of(), build()
    drifts = [abs(d) for r in rollouts for d in _drift(model, r)]
    drift = np.mean(drifts)
    found, _ = update(model, None, rollouts, UpdateConfig(kl_coef=0, old_logprobs="trainer"))
    assert found.ratio_mean == pytest.approx(1, abs=1e-4)
    assert found.ratio_max == pytest.approx(1, abs=1e-4)
    assert found.sampler_logprob_drift == pytest.approx(drift, rel=1e-4)
    assert found.sampler_logprob_drift_max == pytest.approx(max(drifts), rel=1e-4)
    assert all(r.ref_logprobs is None for r in rollouts)
    sampler, _ = update(build(), None, rollouts, UpdateConfig(kl_coef=0))
    assert sampler.sampler_logprob_drift == pytest.approx(drift, rel=1e-4)
    assert sampler.sampler_logprob_drift_max is None
    assert sampler.ratio_max is not None
    assert sampler.ratio_max > 1.1


def _drift(model: Any, rollout: TrainingRollout) -> np.ndarray:
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
    with torch.no_grad():
        distribution = model(ids).logits[0, len(rollout.prompt_ids) - 1 : -1].log_softmax(-1)
    return distribution.gather(-1, torch.tensor(rollout.completion_ids)[:, None])[:, 0].numpy() - rollout.old_logprobs


def test_the_reference_is_asked_once_a_round_and_only_where_needed(build: Any, rollouts_of: Any) -> None:
    reference, passes = build(seed=1), []
    reference.model.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    before = weights(reference)
    update(build(), reference, rollouts_of(), UpdateConfig(epochs=3, minibatches=2, learning_rate=1e-3))
    assert passes == [False]
    assert same(weights(reference), before)
    update(build(), reference, rollouts_of(), UpdateConfig(kl_coef=0))
    assert passes == [False]
    with pytest.raises(ValueError, match="needs a reference policy"):
        update(build(), None, rollouts_of(), UpdateConfig())


def test_a_policy_equal_to_its_reference_has_no_kl(build: Any, rollouts_of: Any) -> None:
    found, _ = update(build(), build(), rollouts_of(), UpdateConfig())
    assert found.kl == pytest.approx(0, abs=1e-6)
    without, _ = update(build(), build(), rollouts_of(), UpdateConfig(kl_coef=0))
    assert without.kl is None
    assert "kl" not in without.as_dict()


# -- trouble --


@pytest.mark.parametrize(("advantage", "what"), [(-1.0, "loss"), (1.0, "gradient norm")])
def test_a_non_finite_number_stops_before_anything_changes(
    build: Any, rollouts_of: Any, advantage: float, what: str
) -> None:
    # An old logprob of -inf: an infinite ratio. Punished, it is the loss; rewarded, it is clipped and 0 * inf remains.
    model, rollouts = build(), rollouts_of()
    broken = rollouts[5]
    rollouts[5] = replace(broken, old_logprobs=np.full_like(broken.old_logprobs, -np.inf), advantage=advantage)
    before, state = weights(model), new_trainer_state(model, seed=0)
    with pytest.raises(NonFiniteUpdate, match=f"{what} of optimiser step 1 .*learning_rate"):
        update(model, None, rollouts, UpdateConfig(kl_coef=0, learning_rate=1e-2), state)
    assert same(weights(model), before)
    assert state.step == 0
    assert all((moment == 0).all() for moment in state.exp_avg.values())


def test_the_message_names_the_step(build: Any, rollouts_of: Any) -> None:
    rollouts = rollouts_of(groups=2)
    first, _ = update(build(), None, rollouts, UpdateConfig(kl_coef=0))
    assert first.steps == 1
    config = UpdateConfig(kl_coef=0, learning_rate=1e38, max_grad_norm=FREE, epochs=2)
    with pytest.raises(NonFiniteUpdate, match=r"optimiser step 2 \(epoch 2, minibatch 1"):
        update(build(), None, rollouts, config)


def test_only_float32_is_trained(build: Any, rollouts_of: Any) -> None:
    model = build()
    state = new_trainer_state(model, seed=0)
    with pytest.raises(ValueError, match="float32"):
        update(model.to(torch.bfloat16), None, rollouts_of(), UpdateConfig(kl_coef=0), state)


# -- the same again --


def _round(model: Any, state: TrainerState, rollouts: list[TrainingRollout], number: int) -> UpdateMetrics:
    config = UpdateConfig(learning_rate=1e-3, epochs=2, minibatches=2, warmup_steps=6, weight_decay=0.1, kl_coef=0)
    return update(model, None, rollouts, config, state, number)[0]


@pytest.mark.parametrize("saved_dtype", [torch.float32, torch.bfloat16])
def test_two_rounds_through_the_disk_equal_two_rounds_bit_for_bit(
    build: Any, rollouts_of: Any, tmp_path: Path, saved_dtype: torch.dtype
) -> None:
    rounds = [rollouts_of(seed=1), rollouts_of(seed=2)]
    straight = build(tie_word_embeddings=True)
    state = new_trainer_state(straight, seed=0)
    expected = [_round(straight, state, rollouts, n) for n, rollouts in enumerate(rounds)]

    model = build(tie_word_embeddings=True)
    first = new_trainer_state(model, seed=0)
    found = [_round(model, first, rounds[0], 0)]
    save_trainer_state(tmp_path / "state", model, first, master_weights=saved_dtype != torch.float32)
    model.to(saved_dtype).save_pretrained(tmp_path / "policy")
    torch.rand(7)
    again = type(model).from_pretrained(tmp_path / "policy", dtype=torch.float32)
    second = load_trainer_state(tmp_path / "state", again)
    found.append(_round(again, second, rounds[1], 1))

    assert found == expected
    assert same(weights(again), weights(straight))
    assert second.step == state.step == 8
    assert same(second.exp_avg, state.exp_avg)
    assert same(second.exp_avg_sq, state.exp_avg_sq)
    assert torch.equal(second.rng_cpu, state.rng_cpu)


def test_another_round_takes_the_groups_in_another_order(build: Any, rollouts_of: Any) -> None:
    results = []
    for number in range(4):
        model = build()
        update(model, None, rollouts_of(), UpdateConfig(kl_coef=0, minibatches=4, learning_rate=1e-3), None, number)
        results.append(weights(model))
    assert any(not same(results[0], other) for other in results[1:])


def test_dropout_is_off(build: Any, rollouts_of: Any) -> None:
    plain, dropping = build(), build(attention_dropout=0.5)
    dropping.train()
    one, _ = update(plain, None, rollouts_of(), UpdateConfig(kl_coef=0))
    two, _ = update(dropping, None, rollouts_of(), UpdateConfig(kl_coef=0))
    assert one == two
    assert not dropping.training


def test_autocast_computes_in_bfloat16_on_master_weights(build: Any, rollouts_of: Any) -> None:
    full, half = build(), build()
    config = UpdateConfig(learning_rate=1e-6, tokens_per_microbatch=40)
    one, state = update(full, build(seed=1), rollouts_of(), config)
    two, _ = update(half, build(seed=1), rollouts_of(), config, autocast_dtype=torch.bfloat16)
    assert one.entropy is not None
    assert two.entropy == pytest.approx(one.entropy, rel=0.02)
    assert two.entropy != one.entropy
    assert all(weight.dtype == torch.float32 for weight in half.parameters())
    assert not same(weights(half), weights(build()))  # steps of 1e-6 are not lost
    assert all(moment.dtype == torch.float32 for moment in state.exp_avg.values())


# -- configuration --


def test_the_usual_recipe_is_the_default() -> None:
    config = UpdateConfig()
    assert (config.learning_rate, config.kl_coef, config.clip_low, config.clip_high) == (1e-6, 0.04, 0.2, 0.2)
    assert (config.epochs, config.minibatches, config.max_grad_norm) == (1, 1, 1.0)


@pytest.mark.parametrize(
    "bad",
    [{"lr": 1e-6}, {"learning_rate": 0}, {"betas": (0.9, 1.0)}, {"clip_low": 1.5}, {"kl_coef": -1}, {"epochs": 0}],
)
def test_bad_config(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        UpdateConfig(**bad)


def test_the_config_is_cheap_to_import() -> None:
    program = "import sys, grpo_core.policy.update; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
