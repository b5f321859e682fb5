import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.kl import k1, k2, k3, reward_penalties

LN2 = math.log(2)
POLICY, REFERENCE = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.2, 0.6]).double()


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_k3_is_never_negative(logprob: float, reference: float) -> None:
    assert float(k3(torch.tensor(logprob, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64))) >= 0


@pytest.mark.parametrize("estimator", [k1, k3])
def test_k1_and_k3_estimate_the_kl(estimator: object) -> None:
    # Exactly, as an expectation over the policy's own distribution.
    assert callable(estimator)
    expected = (POLICY * (POLICY / REFERENCE).log()).sum()
    torch.testing.assert_close((POLICY * estimator(POLICY.log(), REFERENCE.log())).sum(), expected)


@pytest.mark.parametrize(("estimator", "corrected"), [(k1, True), (k2, False), (k3, True)])
def test_gradients_that_are_the_kls_own(estimator: object, corrected: bool) -> None:
    # As an expectation over samples of the policy: k2 as it stands, k1 and k3 under the ratio (DeepSeek-V3.2).
    assert callable(estimator)
    logits = POLICY.log().requires_grad_()
    logprobs = logits.log_softmax(-1)
    (wanted,) = torch.autograd.grad((logprobs.exp() * (logprobs - REFERENCE.log())).sum(), logits, retain_graph=True)
    terms = estimator(logprobs, REFERENCE.log())
    if corrected:
        terms = terms * (logprobs - logprobs.detach()).exp()
    (found,) = torch.autograd.grad((POLICY * terms).sum(), logits)
    torch.testing.assert_close(found, wanted)


def test_k1_in_the_loss_has_no_gradient_in_the_mean() -> None:
    logits = POLICY.log().requires_grad_()
    (found,) = torch.autograd.grad((POLICY * k1(logits.log_softmax(-1), REFERENCE.log())).sum(), logits)
    torch.testing.assert_close(found, torch.zeros_like(found))


def test_penalties_are_sums_less_the_mean_of_the_group() -> None:
    def rollout(prompt_id: str, differences: list[float]) -> TrainingRollout:
        old = np.full(len(differences), -2.0)
        return TrainingRollout(prompt_id, [1], [3] * len(old), old, 0.0, ref_logprobs=old - np.array(differences))

    # Sums of old - reference: 3 ln2 and ln2 in a, ln2 in b; the groups' means are 2 ln2 and ln2.
    rollouts = [rollout("a", [LN2, LN2, LN2]), rollout("b", [LN2]), rollout("a", [3 * LN2, -2 * LN2])]
    assert reward_penalties(rollouts, "k1") == pytest.approx([LN2, 0.0, -LN2], abs=1e-6)
    # k2: 3 ln2^2 / 2 and 13 ln2^2 / 2, mean 4 ln2^2.
    assert reward_penalties(rollouts, "k2") == pytest.approx([-2.5 * LN2**2, 0.0, 2.5 * LN2**2], abs=1e-6)
