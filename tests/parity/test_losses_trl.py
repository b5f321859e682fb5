"""Our losses against those of trl 1.16, which live inside ``GRPOTrainer._compute_loss``: values and gradients."""

import importlib.util
import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parity.loss_batch import MAX_NEW_TOKENS, Batch, assert_equal, hand_batch, ours, random_batch
from torch import Tensor

from grpo_core.policy.batching import Microbatch, TrainingRollout
from grpo_core.policy.step import PlannedStep

if importlib.util.find_spec("trl") is None:
    pytest.skip("trl is not installed", allow_module_level=True)

from accelerate import Accelerator
from trl.trainer.grpo_trainer import GRPOTrainer

pytestmark = pytest.mark.parity


class Trainer:
    """As much of a ``GRPOTrainer`` as its loss asks for; the model is the batch's own logprobs and entropies."""

    _compute_loss = GRPOTrainer._compute_loss
    get_high_entropy_mask = GRPOTrainer.get_high_entropy_mask
    get_off_policy_mask = staticmethod(GRPOTrainer.get_off_policy_mask)
    get_gamma_weights = staticmethod(GRPOTrainer.get_gamma_weights)

    def __init__(self, logprobs: Tensor, entropy: Tensor, **options: Any) -> None:
        self.found = logprobs, entropy, None
        self.loss_type = options.pop("loss_type")
        self.importance_sampling_level = options.pop("level", "token")
        self.beta = options.pop("beta", 0.0)
        self.epsilon_low = options.pop("epsilon_low", 0.2)
        self.epsilon_high = options.pop("epsilon_high", 0.2)
        self.top_entropy_quantile = options.pop("top_entropy_quantile", 1.0)
        self.entropy_coef = options.pop("entropy_coef", 0.0)
        self.current_gradient_accumulation_steps = options.pop("accumulation", 1)
        self.use_vllm = self.vllm_importance_sampling_correction = options.pop("corrected", False)
        self._entropy_bonus_enabled = self.entropy_coef > 0
        self.use_adaptive_entropy = self.aux_loss_enabled = False
        self.off_policy_mask_threshold = None
        self.max_completion_length = MAX_NEW_TOKENS
        self.accelerator = Accelerator(cpu=True)
        self.model = SimpleNamespace(training=True)
        self._metrics = {"train": defaultdict(list)}
        self.args = SimpleNamespace(
            delta=options.pop("delta", None),
            use_bias_correction_kl=options.pop("use_bias_correction_kl", False),
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            steps_per_generation=self.current_gradient_accumulation_steps,
        )
        assert not options

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
        return self.found


def trl(batch: Batch, weights: Tensor | None = None, with_entropy: bool = False, **options: Any) -> list[Tensor]:
    """trl's loss, and its gradient by the logprobs or the entropies."""
    leaves = batch.logprobs.clone().requires_grad_(), batch.entropy.clone().requires_grad_()
    trainer = Trainer(*leaves, corrected=weights is not None, **options)
    empty = torch.zeros(len(batch.mask), 0, dtype=torch.long)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": batch.mask,
        "completion_mask": batch.mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.reference,
        "importance_sampling_ratio": weights,
        "num_items_in_batch": batch.mask.sum(),
    }
    loss = trainer._compute_loss(None, inputs)
    return [loss.detach(), *torch.autograd.grad(loss, leaves[1] if with_entropy else leaves[0])]


PPO = {"epsilon_low": 0.2, "epsilon_high": 0.28}
OURS = {"clip_low": 0.2, "clip_high": 0.28}
SEQUENCE = {"ratio_level": "sequence"}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dapo": (PPO | {"loss_type": "dapo"}, OURS),
    "bnpo in one micro-batch": (PPO | {"loss_type": "bnpo"}, OURS),
    "grpo": (PPO | {"loss_type": "grpo"}, OURS | {"aggregation": "sequence"}),
    "dr_grpo": (PPO | {"loss_type": "dr_grpo"}, OURS | {"aggregation": "constant"}),
    "gspo": (PPO | {"loss_type": "grpo", "level": "sequence"}, OURS | SEQUENCE | {"aggregation": "sequence"}),
    "gspo over tokens": (PPO | {"loss_type": "dapo", "level": "sequence"}, OURS | SEQUENCE),
    "luspo": (
        PPO | {"loss_type": "luspo", "level": "sequence"},
        OURS | SEQUENCE | {"aggregation": "constant", "constant_length": 1},
    ),
    "dual clip": (PPO | {"loss_type": "dapo", "delta": 1.5}, OURS | {"dual_clip": 1.5}),
    # trl's bound of cispo is the weight itself, and it has no lower one.
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.3}, {"clip": "cispo", "clip_low": 1, "clip_high": 0.3}),
    "sapo": ({"loss_type": "sapo"}, {"clip": "sapo", "aggregation": "sequence"}),
    "sapo of sequences": (
        {"loss_type": "sapo", "level": "sequence"},
        SEQUENCE | {"clip": "sapo", "aggregation": "sequence"},
    ),
}
KL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "": ({}, {}),
    "kl": ({"beta": 0.3}, {"kl_coef": 0.3}),
    "kl corrected": ({"beta": 0.3, "use_bias_correction_kl": True}, {"kl_coef": 0.3, "kl_bias_correction": True}),
}


# The correction of a sequence's KL differs on purpose: test_the_bias_correction_weighs_by_the_tokens_own_ratio.
BOTH = [(case, kl) for case in CASES for kl in KL if kl != "kl corrected" or "level" not in CASES[case][0]]


@pytest.mark.parametrize(("case", "kl"), BOTH)
def test_loss_and_gradient(case: str, kl: str) -> None:
    for seed in range(3):
        batch = random_batch(seed)
        assert_equal(ours(batch, **CASES[case][1], **KL[kl][1]), trl(batch, **CASES[case][0], **KL[kl][0]))


@pytest.mark.parametrize(
    ("importance", "weights"),
    [
        ({"correction": "truncate", "high": 1.2}, lambda w: w.clamp(max=1.2)),
        ({"correction": "mask", "low": 0.8, "high": 1.3}, lambda w: w.masked_fill((w < 0.8) | (w > 1.3), 0)),
        ({"correction": "truncate", "level": "sequence", "high": 1.2}, lambda w: w.clamp(max=1.2)),
        ({"correction": "mask", "level": "sequence", "high": 3.0}, lambda w: w.masked_fill(w > 3, 0)),
    ],
)
def test_importance_weights(importance: dict[str, Any], weights: Any) -> None:
    # trl makes the weights where it generates; the four lines are read off there.
    batch = random_batch()
    difference = (batch.old - batch.sampler) * batch.mask
    if importance.get("level") == "sequence":
        difference = difference.sum(-1, keepdim=True)
    expected = trl(batch, weights(difference.exp()), loss_type="dapo", beta=0.3)
    assert_equal(ours(batch, kl_coef=0.3, old_logprobs="trainer", importance=importance), expected)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_top_entropy(share: float) -> None:
    batch = random_batch()
    rollouts = [
        TrainingRollout("p", [1], [3] * int(n), [-1.0] * int(n), 0.0, old_entropy=row[: int(n)].numpy())
        for row, n in zip(batch.entropy, batch.mask.sum(1), strict=True)
    ]
    threshold = PlannedStep(0, 0, [Microbatch([], rollouts)]).entropy_threshold(share)
    expected = trl(batch, loss_type="dapo", beta=0.3, top_entropy_quantile=share)
    assert_equal(ours(batch, selected=batch.entropy >= threshold, kl_coef=0.3), expected)


def test_entropy_bonus_over_tokens() -> None:
    batch = random_batch()
    options = {"loss_type": "dapo", "entropy_coef": 0.1}
    for with_entropy in (False, True):
        found = ours(batch, entropy_coef=0.1, with_entropy=with_entropy)
        assert_equal(found, trl(batch, with_entropy=with_entropy, **options))


# -- where we differ on purpose --


def test_bnpo_of_several_micro_batches_weighs_tokens_by_how_they_were_cut() -> None:
    # One token that loses -1; three that lose 2 each. trl: the mean of the two micro-batches' means. Ours: 5 / 4.
    long, short = hand_batch([[1.0] * 3], [-2.0]), hand_batch([[1.0]], [1.0])
    parts = [trl(part, loss_type="bnpo", accumulation=2)[0] for part in (short, long)]
    assert float(sum(parts)) == pytest.approx((-1 + 2) / 2)
    assert float(ours(hand_batch([[1.0], [1.0] * 3], [1.0, -2.0]))[0]) == pytest.approx(5 / 4)


def test_grpo_of_several_micro_batches_is_the_same() -> None:
    parts = [hand_batch([[1.0]], [1.0]), hand_batch([[1.0] * 3], [-2.0])]
    total = sum(trl(part, loss_type="grpo", accumulation=2)[0] for part in parts)
    whole = ours(hand_batch([[1.0], [1.0] * 3], [1.0, -2.0]), aggregation="sequence")[0]
    assert float(whole) == pytest.approx(float(total)) == pytest.approx(0.5)


def test_the_entropy_bonus_is_aggregated_as_the_loss_is() -> None:
    # Entropies 4 and 2, 2, 2: 2.5 over tokens, which trl takes for every loss; 3 over sequences.
    batch = hand_batch([[1.0], [1.0] * 3], [0.0, 0.0], entropy=[[4.0], [2.0, 2.0, 2.0]])
    assert float(trl(batch, loss_type="grpo", entropy_coef=1.0)[0]) == pytest.approx(-2.5)
    assert float(ours(batch, aggregation="sequence", entropy_coef=1.0)[0]) == pytest.approx(-3)


def test_the_bias_correction_weighs_by_the_tokens_own_ratio() -> None:
    # Ratios 2 and 8 make 4 for the sequence. References at twice the policy: k3 = 1 - ln 2 each. trl: 4 * k3 for both;
    # ours 2 * k3 and 8 * k3, which alone makes the gradient the KL's own.
    batch = hand_batch([[2.0, 8.0]], [0.0], reference=[[4.0, 16.0]])
    k3 = 1 - math.log(2)
    options = {"loss_type": "dapo", "level": "sequence", "beta": 1.0, "use_bias_correction_kl": True}
    assert float(trl(batch, **options)[0]) == pytest.approx(4 * k3)
    found = ours(batch, ratio_level="sequence", kl_coef=1.0, kl_bias_correction=True)
    assert float(found[0]) == pytest.approx(5 * k3)
