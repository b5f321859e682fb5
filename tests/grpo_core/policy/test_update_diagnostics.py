"""What an update says about itself on a real model: where the gradient was, and whether it went the right way."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.optimizer import new_trainer_state
from grpo_core.policy.update import UpdateConfig, UpdateMetrics, update_policy

STRONG = {"learning_rate": 1e-2, "kl_coef": 0.0, "old_logprobs": "trainer", "max_grad_norm": 1e9}


def update(model: Any, rollouts: list[TrainingRollout], **config: Any) -> UpdateMetrics:
    state = new_trainer_state(model, seed=0)
    settings = UpdateConfig(**(STRONG | config))
    return update_policy(model, None, rollouts, state, settings, temperature=1.0, seed=0, round_number=1)


def mean_logprob(model: Any, rollout: TrainingRollout) -> float:
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
    with torch.no_grad():
        distribution = model(ids).logits[0, len(rollout.prompt_ids) - 1 : -1].log_softmax(-1)
    return float(distribution.gather(-1, torch.tensor(rollout.completion_ids)[:, None]).mean())


def test_direction_is_what_the_logprobs_did(build: Any, rollouts_of: Any) -> None:
    model = build()
    rollouts = [replace(r, advantage=1.0 if n % 2 else -2.0) for n, r in enumerate(rollouts_of(groups=2, size=3))]
    before = [mean_logprob(model, r) for r in rollouts]
    found = update(model, rollouts)
    moved = [mean_logprob(model, r) - b for r, b in zip(rollouts, before, strict=True)]
    good, bad = moved[1::2], moved[::2]
    assert found.direction == pytest.approx((sum(good) - sum(bad)) / 6, abs=1e-5)
    assert found.direction_weighted == pytest.approx((sum(good) - 2 * sum(bad)) / 9, abs=1e-5)
    assert found.direction_good == pytest.approx(sum(good) / 3, abs=1e-5)
    assert found.direction_bad == pytest.approx(sum(bad) / 3, abs=1e-5)
    assert found.direction is not None
    assert found.direction > 0.01


def test_looking_changes_nothing_and_can_be_left_out(build: Any, rollouts_of: Any) -> None:
    looked, blind, passes = build(), build(), {"looked": 0, "blind": 0}
    for name, model in (("looked", looked), ("blind", blind)):
        model.model.register_forward_hook(lambda *_, name=name: passes.update({name: passes[name] + 1}))
    assert update(looked, rollouts_of(), direction_groups=2).direction is not None
    assert update(blind, rollouts_of(), direction_groups=0).direction is None
    assert passes["looked"] == passes["blind"] + 1
    assert all(torch.equal(one, two) for one, two in zip(looked.parameters(), blind.parameters(), strict=True))


def test_norms_of_the_parts_make_up_the_whole(build: Any, rollouts_of: Any) -> None:
    found = update(build(num_hidden_layers=3), rollouts_of())
    parts = [value for name, value in found.as_dict().items() if name.startswith("grad_norm_")]
    assert len(parts) == 5
    assert found.grad_norm == pytest.approx(math.hypot(*parts), rel=1e-5)  # one step, so its mean is itself
