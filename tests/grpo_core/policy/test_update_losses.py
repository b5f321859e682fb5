"""The choices of the loss as a whole update takes them: what it records beforehand, schedules, metrics."""

import math
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import loads

from grpo_core import interrupt
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.optimizer import TrainerState, new_trainer_state
from grpo_core.policy.update import UpdateConfig, UpdateMetrics, update_policy

LN2, LN8 = math.log(2), math.log(8)


def update(
    model: Any, reference: Any, rollouts: list[TrainingRollout], config: UpdateConfig, **options: Any
) -> tuple[UpdateMetrics, TrainerState]:
    state = options.pop("state", None) or new_trainer_state(model, seed=0)
    settings = {"temperature": 1.0, "seed": 0, "round_number": 1} | options
    return update_policy(model, loads(reference), rollouts, state, config, **settings), state


@pytest.fixture
def uniform(build: Any) -> Any:
    """A policy of eight tokens that gives each the logprob -ln 8, whatever stands before it."""
    model = build(vocab_size=8)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    return model


def hand_rollout(
    prompt_id: str, tokens: int, ratio: float, advantage: float, reference: float = 1.0
) -> TrainingRollout:
    """``ratio`` of the policy, ``reference`` of the reference policy, each over 1/8 and so over the policy's own."""
    old = np.full(tokens, -LN8 - math.log(ratio))
    ids = np.arange(tokens) % 5 + 3
    known = np.full(tokens, -LN8 + math.log(reference))
    return TrainingRollout(prompt_id, [1, 2], ids, old, advantage, ref_logprobs=known)


HAND = [
    hand_rollout("a", 1, 1.5, 1.0),  #  1 token  of -1.2 (held at 1 + 0.2)
    hand_rollout("a", 3, 0.5, -1.0),  # 3 tokens of +0.8 (held at 1 - 0.2)
    hand_rollout("b", 2, 1.0, 2.0),  #  2 tokens of -2.0
    hand_rollout("b", 4, 1.1, -0.5),  # 4 tokens of +0.55
]


@pytest.mark.parametrize(
    ("config", "loss"),
    [
        ({}, (-1.2 + 2.4 - 4 + 2.2) / 10),
        ({"aggregation": "sequence"}, (-1.2 + 0.8 - 2 + 0.55) / 4),
        ({"aggregation": "constant"}, (-1.2 + 2.4 - 4 + 2.2) / (4 * 5)),
        ({"aggregation": "constant", "constant_length": 2}, (-1.2 + 2.4 - 4 + 2.2) / 8),
        ({"clip": "none"}, (-1.5 + 1.5 - 4 + 2.2) / 10),
        ({"clip": "cispo"}, (1.2 - 3 * 0.8 + 4 - 4 * 0.55) * LN8 / 10),
        ({"entropy_coef": 0.5}, (-1.2 + 2.4 - 4 + 2.2) / 10 - 0.5 * LN8),
    ],
)
@pytest.mark.parametrize("minibatches", [1, 2])
def test_metrics_are_of_the_whole_round(uniform: Any, config: dict[str, Any], loss: float, minibatches: int) -> None:
    settings = UpdateConfig(kl_coef=0, learning_rate=1e-12, minibatches=minibatches, **config)
    found, _ = update(uniform, None, HAND, settings, max_new_tokens=5)
    assert found.steps == minibatches
    assert found.loss == pytest.approx(loss, abs=1e-6)
    squares = 1.5**2 + 3 * 0.5**2 + 2 + 4 * 1.1**2
    assert found.ratio_ess == pytest.approx((1.5 + 1.5 + 2 + 4.4) ** 2 / 10 / squares, abs=1e-6)
    assert found.kl_old == pytest.approx(sum(n * (r - 1 - math.log(r)) for n, r in ((1, 1.5), (3, 0.5), (4, 1.1))) / 10)
    if minibatches == 1:  # it is measured before any update, so on the first step alone
        assert found.sampler_kl == pytest.approx(found.kl_old, abs=1e-6)
    assert found.importance_mean is found.importance_outside is found.entropy_masked is found.clip_ratio_dual is None


def test_a_constant_aggregation_needs_a_length(uniform: Any) -> None:
    with pytest.raises(ValueError, match="constant_length"):
        update(uniform, None, HAND, UpdateConfig(kl_coef=0, aggregation="constant"))


def test_the_entropy_bonus_makes_the_policy_less_sure(build: Any, rollouts_of: Any) -> None:
    model, rollouts = build(), [replace(r, advantage=0.0) for r in rollouts_of()]
    config = UpdateConfig(kl_coef=0, entropy_coef=1.0, learning_rate=1e-3, epochs=5)
    first, state = update(model, None, rollouts, config)
    last, _ = update(model, None, rollouts, config, state=state)
    assert first.entropy is not None
    assert last.entropy is not None
    assert last.entropy > first.entropy + 0.1


def test_the_clip_widens_with_the_rounds_and_with_the_steps(uniform: Any) -> None:
    rollouts = [hand_rollout("a", 1, 1.15, 1.0)]
    rounds = {"low_start": 0.1, "high_start": 0.1, "over": 2}
    config = UpdateConfig(kl_coef=0, learning_rate=1e-12, clip_schedule=rounds)
    losses = [update(uniform, None, rollouts, config, round_number=n)[0].loss for n in (1, 2, 3, 9)]
    assert losses == pytest.approx([-1.1, -1.15, -1.15, -1.15], abs=1e-6)
    config = UpdateConfig(kl_coef=0, learning_rate=1e-12, epochs=3, clip_schedule=rounds | {"unit": "steps", "over": 4})
    first, state = update(uniform, None, rollouts, config)
    assert first.loss == pytest.approx(-(1.1 + 1.125 + 1.15) / 3, abs=1e-6)
    assert first.clip_ratio_high == pytest.approx(2 / 3)
    second, _ = update(uniform, None, rollouts, config, state=state, round_number=2)
    assert second.clip_ratio_high == 0


def test_kl_in_the_reward_comes_off_the_advantage(uniform: Any) -> None:
    # Sums of old - reference in group a: -ln 1.5 - ln 2 and ln 2 * 3 - ln 2 * 3 = 0; half their difference is taken
    # from one advantage and given to the other. Group b has one member, so nothing is left of its KL.
    rollouts = [
        hand_rollout("a", 1, 1.5, 1.0, reference=2.0),
        hand_rollout("a", 3, 0.5, -1.0, reference=2.0),
        hand_rollout("b", 2, 1.0, 2.0, reference=2.0),
    ]
    config = UpdateConfig(kl_coef=0.1, kl_in="reward", kl_estimator="k1", clip="none")
    found, _ = update(uniform, None, rollouts, config)
    gift = 0.1 * math.log(3) / 2
    wanted = -(1.5 * (1 + gift) + 3 * 0.5 * (-1 - gift) + 2 * 2.0) / 6
    assert found.loss == pytest.approx(wanted, abs=1e-6)
    assert found.loss == found.policy_loss
    assert found.kl == pytest.approx(1 - LN2, abs=1e-6)
    assert rollouts[0].advantage == 1.0  # the caller's own rollouts stay


def test_the_importance_is_the_trainers_probability_over_the_samplers(uniform: Any) -> None:
    # Recomputed, the ratio is 1; what was the ratio is the importance. 1.5, 3 of 0.5, 2 of 1, 4 of 1.1.
    importance = {"correction": "mask", "low": 0.8, "high": 1.4}
    config = UpdateConfig(kl_coef=0, old_logprobs="trainer", importance=importance)
    found, _ = update(uniform, None, HAND, config)
    assert found.ratio_max == pytest.approx(1, abs=1e-6)
    assert found.loss == pytest.approx((-4 + 4 * 1.1 * 0.5) / 10, abs=1e-6)
    assert found.importance_outside == pytest.approx(4 / 10)
    assert found.importance_mean == pytest.approx((1.5 + 1.5 + 2 + 4.4) / 10, abs=1e-6)
    assert found.importance_max == pytest.approx(1.5, abs=1e-6)
    assert found.importance_ess == pytest.approx(9.4**2 / 10 / (2.25 + 0.75 + 2 + 4.84), abs=1e-6)
    drift = (math.log(1.5) + 3 * LN2 + 4 * math.log(1.1)) / 10
    assert found.sampler_logprob_drift == pytest.approx(drift, abs=1e-6)
    kl = ((0.5 - math.log(1.5)) + 3 * (LN2 - 0.5) + 4 * (0.1 - math.log(1.1))) / 10
    assert found.sampler_kl == pytest.approx(kl, abs=1e-6)


@pytest.mark.parametrize("old_logprobs", ["sampler", "trainer"])
def test_top_entropy_takes_one_more_pass_before_the_first_step(build: Any, rollouts_of: Any, old_logprobs: str) -> None:
    model, passes = build(), []
    model.model.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    config = UpdateConfig(kl_coef=0, top_entropy=0.2, old_logprobs=old_logprobs, epochs=2, direction_groups=0)
    found, _ = update(model, None, rollouts_of(), config)
    assert passes[-3:] == [False, True, True]  # what comes before tries the model's form
    assert found.entropy_masked == pytest.approx(0.8, abs=0.01)
    plain, _ = update(build(), None, rollouts_of(), UpdateConfig(kl_coef=0, old_logprobs=old_logprobs, epochs=2))
    assert found.policy_loss != plain.policy_loss


class Kept:
    """Checkpoints in a folder, after every step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def newest(self) -> Any:
        found = sorted(self.folder.glob("step-*"))
        yield found[-1] if found else None

    def due(self, steps_done: int, steps: int) -> bool:
        return steps_done < steps

    def save(self, steps_done: int, produce: Any) -> None:
        produce(self.folder / f"step-{steps_done}")


def test_an_interrupted_update_goes_on_with_the_entropies_and_penalties_of_before(
    build: Any, rollouts_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = UpdateConfig(
        learning_rate=1e-3,
        epochs=3,
        top_entropy=0.5,
        kl_in="reward",
        old_logprobs="trainer",
        importance={"correction": "truncate", "high": 1.5},
        aggregation="sequence",
    )
    whole, halted = build(), build()
    expected, state = update(whole, build(seed=1), rollouts_of(), config)

    def stop() -> None:
        raise interrupt.Stopped("now")

    with monkeypatch.context() as patch:
        patch.setattr(interrupt, "safe_point", stop)
        with pytest.raises(interrupt.Stopped):
            update(halted, build(seed=1), rollouts_of(), config, checkpoints=Kept(tmp_path))
    found, other = update(build(), build(seed=1), rollouts_of(), config, checkpoints=Kept(tmp_path))
    assert found == expected
    for name, moment in state.exp_avg.items():
        assert torch.equal(moment, other.exp_avg[name])
