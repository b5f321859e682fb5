"""Loss and gradient of an optimiser step do not depend on how it is computed, for every combination of choices."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.form import inspect_model
from grpo_core.policy.logprobs import LogprobForm
from grpo_core.policy.optimizer import build_optimizer, new_trainer_state
from grpo_core.policy.step import Forward, StepSums, plan_steps, run_step

LEVELS = ["token", "sequence", "sequence_token"]
CLIPS: list[dict[str, Any]] = [
    {"clip": "ppo"},
    {"clip": "ppo", "dual_clip": 1.5},
    {"clip": "cispo"},
    {"clip": "sapo"},
    {"clip": "none"},
]
AGGREGATIONS = ["token", "sequence", "constant"]
EXTRAS: list[dict[str, Any]] = [
    {"kl_coef": 0.3, "kl_estimator": "k2", "entropy_coef": 0.1, "top_entropy": 0.4},
    {"kl_coef": 0.3, "kl_bias_correction": True, "importance": {"correction": "mask", "level": "sequence"}},
    {"kl_coef": 0.3, "kl_estimator": "k1", "importance": {"correction": "truncate"}, "entropy_coef": 0.1},
]
COMBINATIONS = [
    {"ratio_level": level, "aggregation": aggregation, **clip, **EXTRAS[number % len(EXTRAS)]}
    for number, (clip, level, aggregation) in enumerate(product(CLIPS, LEVELS, AGGREGATIONS))
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads take longer over a model this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def step_of(build: Any, rollouts_of: Any) -> Any:
    model, made = build(num_hidden_layers=1, initializer_range=0.1), rollouts_of(groups=2, size=4)
    form = inspect_model(model)
    noise = np.random.default_rng(0)

    def near(values: np.ndarray, distance: float) -> np.ndarray:
        return values + noise.normal(0, distance, len(values))

    rollouts = []
    for rollout in made:  # near the model's own, so that some ratios are within the bounds and some beyond
        own = own_logprobs(model, rollout)
        old = near(own, 0.2)
        known = {"old_logprobs": old, "ref_logprobs": near(own, 0.3), "sampler_logprobs": near(old, 0.4)}
        rollouts.append(replace(rollout, **known, old_entropy=noise.random(len(own))))

    def run(
        config: dict[str, Any], form: LogprobForm = form, rollouts: list[TrainingRollout] = rollouts, tokens: int = 8192
    ) -> tuple[StepSums, torch.Tensor]:
        settings = UpdateConfig(
            **{"old_logprobs": "trainer", "max_grad_norm": 1e9, "learning_rate": 1e-12, "tokens_per_microbatch": tokens}
            | config
        )
        state = new_trainer_state(model, seed=0)
        (step,) = plan_steps(rollouts, settings, form, device="cpu", seed=0, round_number=1)
        forward = Forward(form, 1.0, None)
        optimizer = build_optimizer(model, state, settings)
        sums = run_step(
            model, optimizer, state, step, settings, forward, lambda: None, round_number=1, max_new_tokens=8
        )
        # The first moment after one step is 0.1 of the gradient.
        return sums, torch.cat([moment.flatten() for moment in state.exp_avg.values()]) / 0.1

    run.form, run.rollouts = form, rollouts  # type: ignore[attr-defined]
    return run


def own_logprobs(model: Any, rollout: TrainingRollout) -> np.ndarray:
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
    with torch.no_grad():
        distribution = model(ids).logits[0, len(rollout.prompt_ids) - 1 : -1].log_softmax(-1)
    return distribution.gather(-1, torch.tensor(rollout.completion_ids)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("config", COMBINATIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_micro_batches_padding_and_order_change_nothing(step_of: Any, config: dict[str, Any]) -> None:
    sums, gradient = step_of(config)
    norm = float(gradient.norm())
    shuffled = list(step_of.rollouts)
    random.Random(0).shuffle(shuffled)
    variants = [
        {"tokens": 20, "rollouts": shuffled},
        {"form": replace(step_of.form, shared_prefix=False, chunked_head=False), "tokens": 40},
    ]
    for variant in variants:
        other, found = step_of(config, **variant)
        torch.testing.assert_close(found / norm, gradient / norm, atol=1e-6, rtol=0)
        for name in StepSums.__slots__:
            # Sums: a millionth of a token's.
            wanted = getattr(sums, name)
            assert getattr(other, name) == pytest.approx(wanted, rel=1e-6, abs=1e-6 * sums.tokens), name


def test_the_batch_meets_every_bound(step_of: Any) -> None:
    # Otherwise the test above would not see them.
    sums, _ = step_of({"dual_clip": 1.1, "top_entropy": 0.4, "importance": {"correction": "mask", "low": 0.7}})
    for name in ("clipped_low", "clipped_high", "clipped_dual", "importance_outside"):
        assert 0 < getattr(sums, name) < sums.tokens, name
    assert sums.unselected == pytest.approx(0.6 * sums.tokens, abs=1)
