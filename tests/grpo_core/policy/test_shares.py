"""The table of steps: which rollouts moved an optimiser step, and each one's share of it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support import loads

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.optimizer import new_trainer_state
from grpo_core.policy.ppo_config import PPOConfig
from grpo_core.policy.update import UpdateConfig, update_policy
from grpo_core.schemas import STEPS, rollout_id

LN2, LN8 = math.log(2), math.log(8)


def steps_of(model: Any, rollouts: list[TrainingRollout], reference: Any = None, **config: Any) -> pa.Table:
    found = [STEPS.empty_table()]
    state = new_trainer_state(model, seed=0)
    settings = UpdateConfig(**{"kl_coef": 0, "direction_groups": 0} | config)
    update_policy(
        model,
        loads(reference),
        rollouts,
        state,
        settings,
        temperature=1.0,
        seed=0,
        round_number=7,
        on_step=found.append,
    )
    return pa.concat_tables(found)


@pytest.fixture
def uniform(build: Any) -> Any:
    """A policy of eight tokens that gives each the logprob -ln 8, whatever stands before it."""
    model = build(vocab_size=8)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    return model


def hand(prompt_id: str, sample: int, tokens: int, advantage: float, ratio: float = 1.0, ref: float = 0.0) -> Any:
    """The ratio is 1/8 over the old probability; ``ref`` is ln(reference probability * 8)."""
    return TrainingRollout(
        prompt_id,
        [1, 2, 3],
        np.arange(tokens) % 5 + 3,
        np.full(tokens, -LN8 - math.log(ratio)),
        advantage,
        ref_logprobs=np.full(tokens, -LN8 + ref),
        rollout_id=rollout_id(7, prompt_id, sample),
        sample_index=sample,
    )


PLAIN = [hand("b", 1, 2, 2.0), hand("b", 0, 4, -0.5), hand("a", 0, 1, 1.0), hand("a", 1, 3, -1.0)]


def test_plain_grpo_shares_by_advantage_and_tokens(uniform: Any) -> None:
    # At ratio 1, d loss / d logprob = -A / tokens of the step; so 1, 3, 2 and 4 of 10, by prompt and sample.
    table = steps_of(uniform, PLAIN)
    assert table.select(["rollout_id", "tokens", "clipped_tokens", "optimizer_step", "trainer_step"]).to_pylist() == [
        {"rollout_id": name, "tokens": tokens, "clipped_tokens": 0, "optimizer_step": 1, "trainer_step": 1}
        for name, tokens in (("0007/a/0", 1), ("0007/a/1", 3), ("0007/b/0", 4), ("0007/b/1", 2))
    ]
    assert table["gradient_share"].to_pylist() == pytest.approx([0.1, 0.3, 0.2, 0.4], abs=1e-6)
    assert set(table["round"].to_pylist()) == {7}


def test_a_mean_of_means_shares_by_advantage_alone(uniform: Any) -> None:
    shares = steps_of(uniform, PLAIN, aggregation="sequence")["gradient_share"].to_pylist()
    assert shares == pytest.approx([1 / 4.5, 1 / 4.5, 0.5 / 4.5, 2 / 4.5], abs=1e-6)


def test_what_is_held_at_a_bound_pushes_by_its_kl_alone(uniform: Any) -> None:
    # k3's derivative by the logprob is 1 - 2 where the reference is twice as likely; one within pushes by ratio * A.
    rollouts = [
        hand("a", 0, 1, 1.0, ratio=1.5, ref=LN2),  # held: 0.04
        hand("a", 1, 3, -1.0, ratio=0.5, ref=LN2),  # held: 3 * 0.04
        hand("b", 0, 2, 2.0),  # 2 * 2
        hand("b", 1, 4, -0.5, ratio=1.1),  # 4 * 0.55
        hand("c", 0, 5, 0.0, ref=LN2),  # no advantage: 5 * 0.04
    ]
    table = steps_of(uniform, rollouts, kl_coef=0.04)
    assert table["gradient_share"].to_pylist() == pytest.approx(
        [share / 6.56 for share in (0.04, 0.12, 4.0, 2.2, 0.2)], abs=1e-6
    )
    assert table["clipped_tokens"].to_pylist() == [1, 3, 0, 0, 0]


def test_where_nothing_pushes_all_shares_are_zero(uniform: Any) -> None:
    table = steps_of(uniform, [hand("a", 0, 2, 1.0, ratio=1.5), hand("a", 1, 2, -1.0, ratio=0.5)])
    assert table["gradient_share"].to_pylist() == [0.0, 0.0]
    assert table["clipped_tokens"].to_pylist() == [2, 2]


def numbered(rollouts: list[TrainingRollout]) -> list[TrainingRollout]:
    return [replace(r, sample_index=place, reward=place % 3 / 2) for place, r in enumerate(rollouts)]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"aggregation": "sequence", "ratio_level": "sequence", "kl_coef": 0.1},
        {"clip": "cispo", "old_logprobs": "trainer", "top_entropy": 0.5},
        {"entropy_coef": 0.1, "ppo": PPOConfig(alpha_start=0.4, alpha_end=0.4)},
    ],
    ids=["plain", "gspo", "cispo", "mixed"],
)
def test_every_step_sums_to_one_however_it_is_cut(build: Any, rollouts_of: Any, config: dict[str, Any]) -> None:
    found = []
    for tokens in (1, 40, 8192):
        rollouts = numbered(rollouts_of())
        reference = build(seed=1) if config.get("kl_coef") else None
        settings = {"epochs": 2, "minibatches": 2, "tokens_per_microbatch": tokens, "learning_rate": 1e-9} | config
        found.append(steps_of(build(), rollouts, reference, **settings))
    first = found[0]
    assert first["optimizer_step"].to_pylist() == sorted([1, 2, 3, 4] * 8)
    sums = first.group_by("optimizer_step").aggregate([("gradient_share", "sum")])["gradient_share_sum"].to_pylist()
    assert sums == pytest.approx([1.0] * 4, abs=1e-12)
    for other in found[1:]:
        assert other.drop_columns("gradient_share").equals(first.drop_columns("gradient_share"))
        np.testing.assert_allclose(other["gradient_share"], first["gradient_share"], atol=1e-6)


def test_a_dead_group_moves_the_policy_by_ppos_term_alone(build: Any, rollouts_of: Any) -> None:
    rollouts = [replace(r, advantage=0.0, in_loss=False) if r.prompt_id == "p3" else r for r in numbered(rollouts_of())]
    alone = steps_of(build(), rollouts)
    mixed = steps_of(build(), rollouts, ppo=PPOConfig(alpha_start=0.4, alpha_end=0.4))
    assert "p3" not in alone["prompt_id"].to_pylist()
    dead = [row["gradient_share"] for row in mixed.to_pylist() if row["prompt_id"] == "p3"]
    assert len(dead) == 4
    assert sum(dead) > 0
