"""That training teaches: rounds of real sampling and real updates on a tiny transformer; run by ``make learning``."""

import numpy as np
import pytest

from grpo_core.advantages.group import AdvantageConfig, group_advantages
from grpo_core.generation.engine import Request, SamplingParams, seeds_for
from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.optimizer import new_trainer_state
from grpo_core.policy.ppo_config import PPOConfig
from grpo_core.policy.update import UpdateConfig, UpdateMetrics, update_policy
from grpo_core.tiny import build_tiny

ROUNDS, GROUP = 24, 8
PROMPTS = ("spell", "say a word", "letters, please:", "write")
SAMPLING = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=8)


def letters(text: str) -> float:
    """The reward: the share of a completion that is small letters, about 0.1 by chance."""
    return sum("a" <= sign <= "z" for sign in text) / max(1, len(text))


def train(ppo: PPOConfig, seed: int) -> tuple[np.ndarray, list[UpdateMetrics]]:
    """Rewards of every rollout, shape (rounds, rollouts), and each round's metrics."""
    model, tokenizer = build_tiny(seed)
    state = new_trainer_state(model, seed)
    engine = TransformersEngine(model, tokenizer)
    config = UpdateConfig(learning_rate=2e-3, kl_coef=0, epochs=2, minibatches=2, ppo=ppo)
    prompts = {f"p{number}": tokenizer(text)["input_ids"] for number, text in enumerate(PROMPTS)}
    rewards, metrics = [], []
    for number in range(1, ROUNDS + 1):
        requests = [Request(name, ids, seeds_for(seed, number, name, GROUP)) for name, ids in prompts.items()]
        groups = engine.generate(requests, SAMPLING)
        scores = np.array([[letters(one.text) for one in group] for group in groups])
        index = np.repeat(np.arange(len(groups)), GROUP)
        found = group_advantages(scores.ravel(), index, AdvantageConfig())
        rollouts = [
            TrainingRollout(
                request.prompt_id,
                request.prompt_ids,
                one.token_ids,
                one.logprobs,
                float(found.advantage[place]),
                in_loss=bool(found.in_loss[place]),
                reward=float(scores.ravel()[place]),
            )
            for place, (request, one) in enumerate(
                (request, one) for request, group in zip(requests, groups, strict=True) for one in group
            )
        ]
        metrics.append(
            update_policy(model, None, rollouts, state, config, temperature=1.0, seed=seed, round_number=number)
        )
        rewards.append(scores.ravel())
    return np.array(rewards), metrics


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "ppo",
    [
        PPOConfig(),
        PPOConfig(alpha_start=0.3, alpha_end=0.8, alpha_rounds=ROUNDS),
        PPOConfig(alpha_start=0, alpha_end=0),
    ],
    ids=["grpo", "mixed", "ppo"],
)
def test_the_reward_rises(ppo: PPOConfig, seed: int) -> None:
    rewards, metrics = train(ppo, seed)
    before, after = rewards[:3].ravel(), rewards[-3:].ravel()
    error = np.sqrt(before.var(ddof=1) / before.size + after.var(ddof=1) / after.size)
    assert after.mean() - before.mean() > 0.5
    assert after.mean() - before.mean() > 10 * error
    if ppo.mixes:
        errors = [abs((one.return_mean or 0.0) - (one.value_mean or 0.0)) for one in metrics]
        assert metrics[-1].value_mean is not None
        assert metrics[-1].value_mean > 0.3  # from 0: the values follow the reward
        assert errors[-1] < max(errors)
