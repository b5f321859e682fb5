"""A task that a tiny transformer learns in seconds, and a recipe for every estimator and every named loss.

``benchmarks/curves.py`` draws what tests/grpo_core/policy/test_learning.py tests.

The task: small letters, then a punctuation mark, which ends a completion, within eight tokens. The reward is the mean
of two components, the share of small letters before the mark and whether there is a mark. By chance it is about 0.4, at
most 1. Sampling, advantages and updates are the real ones; only stages, files and the tokenizer's text are left out.
"""

import string
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from grpo_core.advantages.config import AdvantageConfig
from grpo_core.advantages.estimate import Batch, estimate
from grpo_core.generation.engine import Completion, Request, SamplingParams, seeds_for
from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.optimizer import new_trainer_state
from grpo_core.policy.update import UpdateMetrics, update_policy
from grpo_core.tiny import build_tiny

ROUNDS, GROUP, TOKENS = 20, 16, 8
PROMPTS = ("spell", "say a word", "letters, please:", "write")
SAMPLING = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=TOKENS)
UPDATE: dict[str, Any] = {"learning_rate": 5e-3, "epochs": 2, "minibatches": 2, "kl_coef": 0, "direction_groups": 0}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one run does: its two config sections as a user would write them, and how old its sampler's weights are."""

    advantage: dict[str, Any] = field(default_factory=dict)
    update: dict[str, Any] = field(default_factory=dict)  # over UPDATE
    sampler: Literal["current", "late"] = "current"  # late: the weights of one round ago, as where both run at once


TRAINERS: dict[str, Any] = {"old_logprobs": "trainer"}
DAPO: dict[str, Any] = {"clip_high": 0.28, "mask_truncated": True}
VALUES: dict[str, Any] = {"value_learning_rate": 5e-3}  # the policy's: values that lag favour early ends
GSPO: dict[str, Any] = {"aggregation": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}

ADVANTAGES: dict[str, Recipe] = {
    name: Recipe({"estimator": name} | options)
    for name, options in {
        "group": {},
        "centred": {},
        "batch": {},
        "rloo": {},
        "reinforce_pp_baseline": {},
        "gdpo": {"component_weights": {"letters": 0.5, "mark": 0.5}},
        "pass_at_k": {"pass_k": 4},
        "opo": {},
        "maxrl": {},
        "rank": {},
        "tiers": {"tier_schedule": [[1, 2], [6, 3], [11, 5]]},
        "adaptive_tiers": {"tier_schedule": [[1, 3]], "prior_decay": 0.7},
    }.items()
}

LOSSES: dict[str, Recipe] = {
    name: Recipe({"estimator": "centred"} if name == "Dr. GRPO" else {}, update)
    for name, update in {
        "GRPO": {"aggregation": "sequence", "kl_coef": 0.04},
        "DAPO": DAPO,
        "Dr. GRPO": {"aggregation": "constant"},
        "BNPO": {"kl_coef": 0.04},
        "GSPO": GSPO | {"ratio_level": "sequence"},
        "GSPO-token": GSPO | {"ratio_level": "sequence_token"},
        "LUSPO": {"ratio_level": "sequence", "aggregation": "constant", "constant_length": 1},
        "CISPO": {"clip": "cispo", "clip_low": 1, "clip_high": 4},
        "SAPO": {"clip": "sapo", "aggregation": "sequence"},
        "widening clip": {"clip_schedule": {"low_start": 0.05, "high_start": 0.05, "over": 10}},
        "80/20": DAPO | {"top_entropy": 0.2},
        "KL in reward": {"kl_coef": 0.04, "kl_estimator": "k1", "kl_in": "reward"},
        "KL of V3.2": {"kl_coef": 0.04, "kl_bias_correction": True},
        "entropy bonus": {"entropy_coef": 0.01},
        "mixed 0.3 to 0.8": {"ppo": VALUES | {"alpha_start": 0.3, "alpha_end": 0.8, "alpha_rounds": ROUNDS}},
        "PPO": {"ppo": VALUES | {"alpha_start": 0, "alpha_end": 0}},
    }.items()
} | {
    name: Recipe(update=update, sampler="late")
    for name, update in {
        "late sampler": {},
        "dual clip": {"dual_clip": 3},
        "trainer's logprobs": TRAINERS,
        "TIS": TRAINERS | {"importance": {"correction": "truncate", "high": 2}},
        "masked IS": TRAINERS | {"importance": {"correction": "mask", "level": "sequence", "high": 2}},
        "IcePop": TRAINERS | {"importance": {"correction": "mask", "low": 0.5, "high": 5}},
    }.items()
}


@dataclass(frozen=True, slots=True)
class Learned:
    """What a run was paid, and what its updates said."""

    rewards: npt.NDArray[np.float64]  # (rounds, rollouts)
    metrics: list[UpdateMetrics]

    @property
    def curve(self) -> npt.NDArray[np.float64]:
        """Mean reward of each round, shape (rounds,)."""
        mean: npt.NDArray[np.float64] = self.rewards.mean(axis=1)
        return mean

    def rise(self) -> tuple[float, float]:
        """How much more the last three rounds were paid than the first three, and that in standard errors (Welch).

        Given the policies, rollouts are independent draws, for each has a seed of its own.
        """
        before, after = self.rewards[:3].ravel(), self.rewards[-3:].ravel()
        error = np.sqrt(before.var(ddof=1) / before.size + after.var(ddof=1) / after.size)
        difference = float(after.mean() - before.mean())
        return difference, difference / float(error)


def train(recipe: Recipe, seed: int, rounds: int = ROUNDS, *, deaf: bool = False) -> Learned:
    """A whole run on one transformer of two layers; about a second and a half.

    Args:
        seed: of weights, sampling and batches.
        deaf: the rewards are dealt out anew within each round, so that there is nothing to learn.
    """
    model, tokenizer = build_tiny(seed)
    letters, marks = (tokenizer.convert_tokens_to_ids(list(s)) for s in (string.ascii_lowercase, string.punctuation))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *marks]
    advantage = AdvantageConfig.model_validate(recipe.advantage)
    update = UpdateConfig.model_validate(UPDATE | recipe.update)
    reference = deepcopy(model)
    sampler = deepcopy(model) if recipe.sampler == "late" else model
    engine, state, prior = TransformersEngine(sampler, tokenizer), new_trainer_state(model, seed), None
    prompts = {f"p{number}": tokenizer(text)["input_ids"] for number, text in enumerate(PROMPTS)}
    deal = np.random.default_rng(seed)
    rewards, metrics = [], []
    for number in range(1, rounds + 1):
        requests = [Request(name, ids, seeds_for(seed, number, name, GROUP)) for name, ids in prompts.items()]
        completions = [one for group in engine.generate(requests, SAMPLING) for one in group]
        if sampler is not model:
            sampler.load_state_dict(model.state_dict())
        components = np.array([_components(one, set(letters)) for one in completions])
        reward = components.mean(axis=1)
        rewards.append(reward)
        if deaf:
            order = deal.permutation(len(reward))
            components, reward = components[order], reward[order]
        batch = Batch(
            reward=reward,
            group=np.repeat(np.arange(len(requests)), GROUP),
            sample=np.tile(np.arange(GROUP), len(requests)),
            length=np.array([len(one.token_ids) for one in completions]),
            components={"letters": components[:, 0], "mark": components[:, 1]},
        )
        found = estimate(batch, advantage, number, prior)
        prior = found.prior
        rollouts = [
            TrainingRollout(
                request.prompt_id,
                request.prompt_ids,
                one.token_ids,
                one.logprobs,
                float(found.advantages.advantage[place]),
                in_loss=bool(found.advantages.in_loss[place]),
                truncated=one.finish_reason == "length",
                reward=float(reward[place]),
            )
            for place, one in enumerate(completions)
            for request in (requests[place // GROUP],)
        ]
        metrics.append(
            update_policy(
                model,
                lambda: reference,
                rollouts,
                state,
                update,
                temperature=SAMPLING.temperature,
                seed=seed,
                round_number=number,
                max_new_tokens=TOKENS,
            )
        )
    return Learned(np.array(rewards), metrics)


def _components(completion: Completion, letters: set[int]) -> tuple[float, float]:
    """The share of small letters before the end, and whether there is an end."""
    ended = completion.finish_reason == "stop"
    signs = completion.token_ids[:-1] if ended else completion.token_ids
    return sum(sign in letters for sign in signs) / max(1, len(signs)), float(ended)
