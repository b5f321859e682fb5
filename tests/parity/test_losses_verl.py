"""Our losses against the pure functions of verl 0.9.1: values and gradients."""

import importlib.util
import math
from typing import Any

import pytest
import torch
from parity.loss_batch import MAX_NEW_TOKENS, Batch, assert_equal, hand_batch, ours, random_batch
from torch import Tensor

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed", allow_module_level=True)

from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

pytestmark = pytest.mark.parity


def verl(
    batch: Batch,
    name: str = "vanilla",
    mode: str = "token-mean",
    kl: tuple[float, str] | None = None,
    weights: Tensor | None = None,
    **options: Any,
) -> list[Tensor]:
    """verl's policy loss, with its KL where asked for, and the gradient by the logprobs."""
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        global_batch_info={"loss_scale_factor": MAX_NEW_TOKENS},
        **{"clip_ratio_c": 1e9} | options,
    )
    leaf = batch.logprobs.clone().requires_grad_()
    advantages = batch.advantages[:, None].expand_as(batch.old)
    function = get_policy_loss_fn(name)
    loss, _ = function(
        old_log_prob=batch.old,
        log_prob=leaf,
        advantages=advantages,
        response_mask=batch.mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=weights,
    )
    if kl is not None:
        penalty = kl_penalty(leaf, batch.reference, kl[1])
        loss = loss + kl[0] * agg_loss(penalty, batch.mask, mode, loss_scale_factor=MAX_NEW_TOKENS)
    return [loss.detach(), *torch.autograd.grad(loss, leaf)]


BOUNDS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
OURS = {"clip_low": 0.2, "clip_high": 0.28}

MODES: dict[str, dict[str, Any]] = {
    "token-mean": {},
    "seq-mean-token-mean": {"aggregation": "sequence"},
    "seq-mean-token-sum-norm": {"aggregation": "constant"},
    "seq-mean-token-sum": {"aggregation": "constant", "constant_length": 1},
}
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ppo": (BOUNDS | {"name": "vanilla"}, OURS),
    "dual clip": (BOUNDS | {"name": "vanilla", "clip_ratio_c": 1.5}, OURS | {"dual_clip": 1.5}),
    "gspo": (BOUNDS | {"name": "gspo"}, OURS | {"ratio_level": "sequence_token"}),
    "cispo": (BOUNDS | {"name": "cispo"}, OURS | {"clip": "cispo"}),
}


@pytest.mark.parametrize("estimator", ["", "k1", "k2", "k3"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", LOSSES)
def test_loss_and_gradient(case: str, mode: str, estimator: str) -> None:
    theirs, mine = LOSSES[case]
    for seed in range(3):
        batch = random_batch(seed)
        config = mine | MODES[mode] | ({"kl_coef": 0.3, "kl_estimator": estimator} if estimator else {})
        assert_equal(
            ours(batch, **config), verl(batch, mode=mode, kl=(0.3, estimator) if estimator else None, **theirs)
        )


def test_gspo_of_one_advantage_a_sequence() -> None:
    # verl has the token variant only; for whole sequences it is the same.
    batch = random_batch()
    expected = verl(batch, "gspo", "seq-mean-token-mean", **BOUNDS)
    assert_equal(ours(batch, ratio_level="sequence", aggregation="sequence", **OURS), expected)


def test_sapo() -> None:
    # verl aggregates sapo over sequences whatever it is told.
    batch = random_batch()
    assert_equal(ours(batch, clip="sapo", aggregation="sequence"), verl(batch, "sapo", tau_pos=1.0, tau_neg=1.05))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("importance", "threshold"),
    [({"correction": "truncate", "high": 1.2}, 1.2), ({"correction": "mask", "low": 0.8, "high": 1.3}, "0.8_1.3")],
)
def test_importance_weights(level: str, importance: dict[str, Any], threshold: float | str) -> None:
    batch = random_batch()
    weights, _ = compute_rollout_correction_weights(batch.old - batch.sampler, batch.mask, level, threshold)
    found = ours(batch, old_logprobs="trainer", importance=importance | {"level": level})
    assert_equal(found, verl(batch, weights=weights))


@pytest.mark.parametrize("mode", MODES)
def test_entropy_bonus(mode: str) -> None:
    batch = random_batch()
    entropy = batch.entropy.clone().requires_grad_()
    bonus = -0.1 * agg_loss(entropy, batch.mask, mode, loss_scale_factor=MAX_NEW_TOKENS)
    quiet = Batch(**vars(batch) | {"advantages": torch.zeros_like(batch.advantages)})
    found = ours(quiet, with_entropy=True, entropy_coef=0.1, **MODES[mode])
    assert_equal(found, [bonus.detach(), *torch.autograd.grad(bonus, entropy)])


# -- where we differ on purpose --


def test_a_dual_clip_is_there_only_where_it_is_asked_for() -> None:
    # verl's default holds a punished ratio of 4 at 3.
    batch = hand_batch([[4.0]], [-1.0])
    assert float(verl(batch, clip_ratio_c=3.0)[0]) == pytest.approx(3)
    assert float(ours(batch)[0]) == pytest.approx(4)
    assert float(ours(batch, dual_clip=3)[0]) == pytest.approx(3)


def test_log_ratios_are_not_cut_off_at_20_nats() -> None:
    # A ratio so wide of the mark is seen in ratio_max, or stops the round as a loss that is not finite.
    batch = hand_batch([[math.exp(25)]], [-1.0])
    assert float(verl(batch)[0]) == pytest.approx(math.exp(20))
    assert float(ours(batch)[0]) == pytest.approx(math.exp(25))


def test_k3_is_not_cut_off_at_10_nats() -> None:
    # Thirty times as likely under the reference: 30 - ln 30 - 1; verl's has no gradient there.
    batch = hand_batch([[1.0]], [0.0], reference=[[30.0]])
    theirs, mine = verl(batch, kl=(1.0, "k3")), ours(batch, kl_coef=1.0)
    assert float(theirs[0]) == 10
    assert float(theirs[1]) == 0
    assert float(mine[0]) == pytest.approx(29 - math.log(30))
    assert float(mine[1]) == pytest.approx(-29)


def test_k3_plus_is_our_k2_in_its_gradient() -> None:
    # verl's "k3+" shows k3 and pulls with k2's gradient; here k2 is chosen, and k3 is shown anyway.
    batch = random_batch()
    theirs = verl(batch, kl=(0.3, "k3+"))
    torch.testing.assert_close(ours(batch, kl_coef=0.3, kl_estimator="k2")[1], theirs[1])
