import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import loads

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.losses import LossSums
from grpo_core.policy.mixed import Divisors, mixed_sums, set_targets
from grpo_core.policy.optimizer import TrainerState, load_trainer_state, new_trainer_state, save_trainer_state
from grpo_core.policy.ppo_config import PPOConfig
from grpo_core.policy.update import UpdateConfig, UpdateMetrics, update_policy
from grpo_core.policy.value import VALUE_FILE, new_value_state

FREE = 1e9  # a norm that never clips: exp_avg / (1 - beta1) of the first step is then the gradient itself


def constant(alpha: float, **settings: Any) -> PPOConfig:
    return PPOConfig(alpha_start=alpha, alpha_end=alpha, **settings)


def update(
    model: Any,
    rollouts: list[TrainingRollout],
    config: UpdateConfig,
    state: TrainerState,
    reference: Any = None,
    round_number: int = 1,
) -> UpdateMetrics:
    return update_policy(
        model, loads(reference), rollouts, state, config, temperature=1.0, seed=0, round_number=round_number
    )  # fmt: skip


def with_head(model: Any) -> TrainerState:
    """A first state whose value head says something."""
    state = new_trainer_state(model, seed=0)
    state.value = new_value_state(model)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in state.value.head.parameters():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=draw))
    return state


@pytest.fixture
def mixed_rollouts(rollouts_of: Any) -> list[TrainingRollout]:
    """Four groups: three live, the last one dead; the second rollout has no reward."""
    found = []
    for number, rollout in enumerate(rollouts_of()):
        dead, lost = rollout.prompt_id == "p3", number == 1
        advantage = 0.0 if dead or lost else rollout.advantage
        reward = None if lost else 1.0 if dead else number % 3 / 2
        found.append(replace(rollout, advantage=advantage, in_loss=not (dead or lost), reward=reward))
    return found


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# -- the objective --


def naive(
    model: Any, reference: Any, state: TrainerState, rollouts: list[TrainingRollout], alpha: float, ppo: PPOConfig
) -> tuple[float, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Loss and gradients of trunk and head read off the papers: a loop over completions and tokens, terms apart."""
    assert state.value is not None
    paid = [r for r in rollouts if r.reward is not None]
    values, advantages = [], []
    for r in paid:
        ids = torch.tensor([[*r.prompt_ids, *r.completion_ids]])
        with torch.no_grad():
            hidden = model.base_model(ids).last_hidden_state[0, len(r.prompt_ids) - 1 : -1]
        old = state.value.head(hidden).tolist()
        carried, back = 0.0, []
        for t in reversed(range(len(old))):
            arrives = r.reward if t == len(old) - 1 else ppo.gamma * old[t + 1]
            carried = arrives - old[t] + ppo.gamma * ppo.gae_lambda * carried
            back.append(carried)
        values.append(old)
        advantages.append(back[::-1])
    flat = np.concatenate(advantages)
    mean, deviation = flat.mean(), flat.std(ddof=1) + 1e-8
    grpo = surrogate = squares = torch.zeros(())
    tokens = live = 0
    for r, old, raw in zip(paid, values, advantages, strict=True):
        ids = torch.tensor([[*r.prompt_ids, *r.completion_ids]])
        start, targets = len(r.prompt_ids) - 1, torch.tensor(r.completion_ids)
        with torch.no_grad():
            ref = reference(ids).logits[0, start:-1].log_softmax(-1)
        new = model(ids).logits[0, start:-1].log_softmax(-1)
        hidden = model.base_model(ids).last_hidden_state[0, start:-1]
        now = state.value.head(hidden if ppo.trunk_gradient else hidden.detach())
        for place, target in enumerate(targets):
            ratio = (new[place, target] - float(r.old_logprobs[place])).exp()
            d = ref[place, target] - new[place, target]
            kl = 0.04 * (d.exp() - d - 1)
            a = (raw[place] - mean) / deviation
            surrogate = surrogate - torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) + kl
            squares = squares + (now[place] - (raw[place] + old[place])) ** 2 / 2
            tokens += 1
            if r.in_loss:
                a = r.advantage
                grpo = grpo - torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) + kl
                live += 1
    loss = alpha * grpo / live + (1 - alpha) * (surrogate + ppo.value_coef * squares) / tokens
    parameters = dict(model.named_parameters()), dict(state.value.head.named_parameters())
    found = [
        dict(zip(part, torch.autograd.grad(loss, part.values(), retain_graph=True), strict=True)) for part in parameters
    ]
    return float(loss.detach()), found[0], found[1]


@pytest.mark.parametrize("trunk_gradient", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_loss_and_gradients_equal_the_naive_ones(
    build: Any, mixed_rollouts: list[TrainingRollout], alpha: float, trunk_gradient: bool
) -> None:
    ppo = constant(alpha, gamma=0.9, gae_lambda=0.8, value_coef=0.7, trunk_gradient=trunk_gradient)
    model, reference = build(), build(seed=1)
    loss, trunk, head = naive(model, reference, with_head(model), mixed_rollouts, alpha, ppo)
    scale = max(float(gradient.abs().max()) for gradient in trunk.values())
    state = with_head(model)
    metrics = update(model, mixed_rollouts, UpdateConfig(max_grad_norm=FREE, ppo=ppo), state, reference)
    assert state.value is not None
    for name, gradient in trunk.items():
        torch.testing.assert_close(state.exp_avg[name] / 0.1 / scale, gradient / scale, atol=2e-5, rtol=0)
    for name, gradient in head.items():
        torch.testing.assert_close(state.value.exp_avg[name] / 0.1, gradient, atol=1e-5, rtol=1e-4)
    assert metrics.loss == pytest.approx(loss, abs=1e-5)


GSPO = {"ratio_level": "sequence_token", "aggregation": "sequence", "clip_low": 0.1, "clip_high": 0.1}
DR_GRPO = {"aggregation": "constant", "constant_length": 8, "kl_in": "reward", "kl_estimator": "k1"}
SELECTED = {"clip": "cispo", "top_entropy": 0.5, "entropy_coef": 0.01, "old_logprobs": "trainer"}


@pytest.mark.parametrize(
    ("alpha", "loss"), [(0.0, {}), (0.3, {}), (0.3, GSPO), (0.3, DR_GRPO), (0.3, SELECTED)], ids=str
)
def test_micro_batches_change_neither_loss_nor_gradients(
    build: Any, mixed_rollouts: list[TrainingRollout], alpha: float, loss: dict[str, Any]
) -> None:
    found = []
    for tokens in (1, 30, 8192):  # weights of an ordinary size: what is left is float32's rounding, as in GRPO alone
        model = build(initializer_range=0.02)
        state = with_head(model)
        config = UpdateConfig(tokens_per_microbatch=tokens, max_grad_norm=FREE, ppo=constant(alpha), **loss)
        found.append((update(model, mixed_rollouts, config, state, build(seed=1)), state))
    first, state = found[0]
    assert state.value is not None
    for metrics, other in found[1:]:
        assert other.value is not None
        assert metrics.loss == pytest.approx(first.loss, abs=1e-6)
        assert metrics.value_loss == pytest.approx(first.value_loss, abs=1e-6)
        assert distance(other.exp_avg, state.exp_avg) < 1e-6
        assert distance(other.value.exp_avg, state.value.exp_avg) < 1e-6


def distance(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """The norm of the difference in units of the norm."""
    first, second = (torch.cat([part[name].double().flatten() for name in one]) for part in (one, two))
    return float((first - second).norm() / second.norm())


@pytest.fixture
def even(build: Any) -> Any:
    """A policy of eight tokens that gives each the logprob -ln 8, whatever stands before it."""
    model = build(vocab_size=8)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    return model


def test_metrics_by_hand(even: Any) -> None:
    # One group of one-token completions, rewards 1, 0, 0, 0 and a head that always says 0.5; all ratios are 1.
    # Returns are the rewards: mean 1/4, variance 3/16. Advantages 0.5, -0.5 x 3: whitened sqrt 3, -1/sqrt 3 x 3, whose
    # surrogate sums to 0. GRPO's advantages are 3, -1, -1, -1 (sum 0). Each value is off by 0.5: loss 0.125.
    # The values don't vary, so they explain nothing: 1 - (3/16) / (3/16).
    rollouts = [
        TrainingRollout("a", [1, 2], [3 + n], [-math.log(8)], 3.0 if n == 0 else -1.0, reward=float(n == 0))
        for n in range(4)
    ]
    state = new_trainer_state(even, seed=0)
    state.value = new_value_state(even)
    with torch.no_grad():
        state.value.head.bias.fill_(0.5)
    found = update(even, rollouts, UpdateConfig(kl_coef=0, ppo=constant(0.25, value_coef=0.1)), state)
    assert found.alpha == 0.25
    assert found.value_loss == pytest.approx(0.125, abs=1e-6)
    assert found.value_mean == pytest.approx(0.5, abs=1e-6)
    assert found.return_mean == pytest.approx(0.25, abs=1e-6)
    assert found.explained_variance == pytest.approx(0, abs=1e-6)
    assert found.policy_loss == pytest.approx(0, abs=1e-6)
    assert found.loss == pytest.approx(0.75 * 0.1 * 0.125, abs=1e-6)


def test_whitening_is_over_the_whole_round_and_not_over_an_optimiser_step(
    mixed_rollouts: list[TrainingRollout],
) -> None:
    paid = [replace(r, values=np.zeros(len(r.completion_ids))) for r in mixed_rollouts if r.reward is not None]
    metrics = set_targets(paid, UpdateConfig(ppo=PPOConfig(gae_lambda=1.0)))
    found = np.concatenate([r.token_advantages for r in paid if r.token_advantages is not None]).astype(np.float64)
    raw = np.concatenate([np.full(len(r.completion_ids), r.reward, dtype=np.float64) for r in paid])
    np.testing.assert_allclose(found, (raw - raw.mean()) / raw.std(ddof=1), atol=1e-6)
    assert metrics.explained_variance == 0
    set_targets(paid, UpdateConfig(ppo=PPOConfig(gae_lambda=1.0, whiten=False)))
    found = np.concatenate([r.token_advantages for r in paid if r.token_advantages is not None])
    np.testing.assert_allclose(found, raw, atol=1e-6)


def test_three_tokens_by_hand() -> None:
    # gamma 0.9, lambda 0.8, V = 0.5, 0.6, 0.7 and a reward of 1 with the last token: delta = 0.54 - 0.5, 0.63 - 0.6,
    # 1 - 0.7, each carried back by 0.72; A2 = 0.3, A1 = 0.03 + 0.216, A0 = 0.04 + 0.17712; a return is A + V.
    # Another completion of one token, V = 0.25 and reward 2: A = 1.75.
    rollouts = [
        TrainingRollout("a", [1], [3, 4, 5], [-1.0] * 3, 0.0, reward=1.0, values=np.array([0.5, 0.6, 0.7])),
        TrainingRollout("b", [1], [3], [-1.0], 0.0, reward=2.0, values=np.array([0.25])),
    ]
    metrics = set_targets(rollouts, UpdateConfig(ppo=PPOConfig(gamma=0.9, gae_lambda=0.8, whiten=False)))
    for rollout, advantages, returns in zip(
        rollouts, ([0.21712, 0.246, 0.3], [1.75]), ([0.71712, 0.846, 1.0], [2.0]), strict=True
    ):
        np.testing.assert_allclose(rollout.token_advantages, advantages, rtol=1e-6)
        np.testing.assert_allclose(rollout.returns, returns, rtol=1e-6)
    assert metrics.value_mean == pytest.approx(2.05 / 4)
    assert metrics.return_mean == pytest.approx(4.56312 / 4)
    unexplained = np.var([0.21712, 0.246, 0.3, 1.75]) / np.var([0.71712, 0.846, 1.0, 2.0])
    assert metrics.explained_variance == pytest.approx(1 - unexplained)


def test_a_kl_in_the_reward_is_paid_token_by_token() -> None:
    # kl_coef 0.5 and k1 = old - reference = 0.2, -0.4: rewards -0.1, 0.2 + 1; values 0, gamma 1, lambda 1:
    # A1 = 1.2, A0 = 1.1. Without a KL both are 1.
    rollout = TrainingRollout(
        "a", [1], [3, 4], [-1.0, -2.0], 0.0, reward=1.0, ref_logprobs=np.array([-1.2, -1.6]), values=np.zeros(2)
    )
    ppo = PPOConfig(gae_lambda=1.0, whiten=False)
    for kl_in, advantages in (("reward", [1.1, 1.2]), ("loss", [1.0, 1.0])):
        set_targets([rollout], UpdateConfig(kl_coef=0.5, kl_in=kl_in, kl_estimator="k1", ppo=ppo))
        np.testing.assert_allclose(rollout.token_advantages, advantages, rtol=1e-6)


def test_the_terms_are_mixed_each_by_its_own_divisor() -> None:
    # Aggregation by sequences: GRPO's sum 6 over 2 live ones is 3, PPO's 8 over 4 is 2, the value's 20 over 10 tokens
    # is 2: 0.25 * 3 + 0.75 * (2 + 0.5 * 2) = 3. Clipped: 0.25 * 3 / 6 + 0.75 * 2 / 10 = 0.275 of the tokens.
    def sums(loss: float, clipped: float) -> LossSums:
        zeros = {field.name: torch.zeros(()) for field in fields(LossSums)}
        found = {"loss": loss, "policy_loss": loss, "clipped_low": clipped}
        return LossSums(**zeros | {name: torch.tensor(value) for name, value in found.items()})

    whole, live = Divisors(loss=4, tokens=10), Divisors(loss=2, tokens=6)
    settings = {"alpha": 0.25, "value_coef": 0.5, "whole": whole, "live": live}
    found = mixed_sums(sums(6.0, 3.0), sums(8.0, 2.0), torch.tensor(20.0), **settings)
    assert float(found.loss) / whole.loss == pytest.approx(3.0)
    assert float(found.policy_loss) / whole.loss == pytest.approx(0.25 * 3 + 0.75 * 2)
    assert float(found.clipped_low) / whole.tokens == pytest.approx(0.275)
    alone = mixed_sums(None, sums(8.0, 2.0), torch.tensor(20.0), **settings)
    assert float(alone.loss) / whole.loss == pytest.approx(0.75 * 3)


def test_returns_that_do_not_vary_have_no_explained_variance() -> None:
    rollout = TrainingRollout("a", [1], [2, 3], [-1.0, -1.0], 0.0, reward=1.0, values=np.array([0.5, 0.5]))
    assert set_targets([rollout], UpdateConfig(ppo=PPOConfig(gae_lambda=1.0))).explained_variance is None


# -- alpha 1 is GRPO, to the bit --


def test_alpha_one_changes_no_bit_and_has_no_head(
    build: Any, mixed_rollouts: list[TrainingRollout], tmp_path: Path
) -> None:
    plain = UpdateConfig(learning_rate=1e-2, epochs=2, minibatches=2)
    odd = plain.model_copy(update={"ppo": constant(1.0, gamma=0.5, value_coef=9.0, value_learning_rate=1.0)})
    outcomes = []
    for name, config in (("plain", plain), ("odd", odd)):
        model, reference = build(), build(seed=1)
        state = new_trainer_state(model, seed=0)
        metrics = update(model, mixed_rollouts, config, state, reference)
        save_trainer_state(tmp_path / name, model, state, master_weights=True)
        assert state.value is None
        files = {file.name: file.read_bytes() for file in sorted((tmp_path / name).iterdir())}
        outcomes.append((metrics.as_dict(), files))
    assert outcomes[0] == outcomes[1]
    assert VALUE_FILE not in outcomes[0][1]
    assert "alpha" not in outcomes[0][0]


# -- what is in which term --


def test_dead_groups_count_in_ppo_and_not_in_grpo(build: Any, mixed_rollouts: list[TrainingRollout]) -> None:
    dead = [r for r in mixed_rollouts if r.prompt_id == "p3"]
    tokens = sum(len(r.completion_ids) for r in dead)
    alone, mixed = build(), build()
    assert update(alone, dead, UpdateConfig(kl_coef=0), new_trainer_state(alone, 0)).steps == 0
    state = new_trainer_state(mixed, 0)
    metrics = update(mixed, dead, UpdateConfig(kl_coef=0, ppo=constant(0.5)), state)
    assert (metrics.steps, metrics.tokens) == (1, tokens)
    # Values start at 0 and every return is near the reward of 1 (lambda 0.95), so the head moves up.
    assert state.value is not None
    assert float(state.value.head.bias.detach()) > 0


def test_a_rollout_without_a_reward_leaves_both_terms(build: Any, mixed_rollouts: list[TrainingRollout]) -> None:
    outcomes = []
    for rollouts in (mixed_rollouts, [r for r in mixed_rollouts if r.reward is not None]):
        model = build()
        state = new_trainer_state(model, 0)
        outcomes.append((update(model, rollouts, UpdateConfig(kl_coef=0, ppo=constant(0.5)), state), weights(model)))
    assert outcomes[0][0] == outcomes[1][0]
    assert same(outcomes[0][1], outcomes[1][1])


def test_truncated_completions_leave_both_terms_when_masked(build: Any, mixed_rollouts: list[TrainingRollout]) -> None:
    rollouts = [replace(r, truncated=n % 3 == 0) for n, r in enumerate(mixed_rollouts)]
    config = UpdateConfig(kl_coef=0, mask_truncated=True, ppo=constant(0.5))
    masked, whole = build(), build()
    one = update(masked, rollouts, config, new_trainer_state(masked, 0))
    two = update(whole, [r for r in rollouts if not r.truncated], config, new_trainer_state(whole, 0))
    assert one == two


def test_an_advantage_without_a_reward_is_refused(build: Any, rollouts_of: Any) -> None:
    model = build()
    with pytest.raises(ValueError, match="no reward"):
        update(model, rollouts_of(), UpdateConfig(kl_coef=0, ppo=constant(0.5)), new_trainer_state(model, 0))


# -- head and trunk --


def test_a_detached_head_leaves_no_trace_in_the_policy(build: Any, mixed_rollouts: list[TrainingRollout]) -> None:
    # With the head's gradient in the policy's norm, or in the trunk, the bits would differ.
    outcomes = []
    for coefficient in (0.1, 1000.0):
        model = build()
        state = with_head(model)
        ppo = constant(0.5, trunk_gradient=False, value_coef=coefficient)
        update(model, mixed_rollouts, UpdateConfig(kl_coef=0, ppo=ppo, max_grad_norm=0.1), state)
        assert state.value is not None
        norm = math.sqrt(sum(float((m / 0.1).double().square().sum()) for m in state.value.exp_avg.values()))
        outcomes.append((weights(model), norm))
    assert same(outcomes[0][0], outcomes[1][0])
    assert outcomes[1][1] == pytest.approx(0.1, rel=1e-3)  # clipped by itself


def test_the_head_has_its_own_rate_and_warm_up(build: Any, mixed_rollouts: list[TrainingRollout]) -> None:
    # AdamW's first step moves every weight by its rate, whatever the gradient; two steps of warm-up halve the first.
    model = build()
    state = new_trainer_state(model, 0)
    ppo = constant(0.5, value_learning_rate=0.25)
    config = UpdateConfig(kl_coef=0, ppo=ppo, learning_rate=1e-12, warmup_steps=2)
    update(model, mixed_rollouts, config, state)
    assert state.value is not None
    assert float(state.value.head.bias.detach().abs()) == pytest.approx(0.125, rel=1e-4)


def test_values_learn_which_prompts_pay(build: Any, rollouts_of: Any) -> None:
    model = build()
    state = new_trainer_state(model, 0)
    # The policy stands still; the first two prompts always pay 1, the others 0.
    rollouts = [replace(r, reward=float(r.prompt_id in ("p0", "p1")), in_loss=False) for r in rollouts_of()]
    ppo = constant(0.0, trunk_gradient=False, value_learning_rate=3e-2, gae_lambda=1.0)
    config = UpdateConfig(kl_coef=0, ppo=ppo, learning_rate=1e-12, epochs=4)
    first = update(model, rollouts, config, state)
    for number in range(2, 13):
        last = update(model, rollouts, config, state, round_number=number)
    assert first.explained_variance == 0
    assert last.explained_variance is not None
    assert last.explained_variance > 0.7  # a linear head on a frozen trunk of 32 random features
    assert last.value_mean == pytest.approx(last.return_mean, abs=0.1)


def test_a_head_is_made_in_the_first_round_with_a_ppo_part_and_kept(
    build: Any, mixed_rollouts: list[TrainingRollout], tmp_path: Path
) -> None:
    # Alpha 1, 0.5, 0, and each round continues from what the one before left on disk.
    config = UpdateConfig(kl_coef=0, ppo=PPOConfig(alpha_start=1.0, alpha_end=0.0, alpha_rounds=3))
    model = build()
    state = new_trainer_state(model, 0)
    alphas, steps = [], []
    for number in (1, 2, 3):
        alphas.append(update(model, mixed_rollouts, config, state, round_number=number).alpha)
        save_trainer_state(tmp_path / str(number), model, state, master_weights=True)
        state = load_trainer_state(tmp_path / str(number), model)
        steps.append(state.value.step if state.value else None)
    assert alphas == [None, 0.5, 0.0]
    assert steps == [None, 1, 2]
