import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.policy.losses import LossSums, clipped_surrogate_sums, k3

LN2 = math.log(2)


def sums(
    ratios: list[float], advantages: list[float], low: float = 0.2, high: float = 0.2
) -> tuple[LossSums, torch.Tensor]:
    logprobs = torch.tensor(ratios, dtype=torch.float64).log().sub(3.0).requires_grad_()
    old = torch.full_like(logprobs, -3.0).detach()
    found = clipped_surrogate_sums(
        logprobs, old, None, torch.tensor(advantages, dtype=torch.float64), clip_low=low, clip_high=high, kl_coef=0.0
    )
    found.loss.backward()
    assert logprobs.grad is not None
    return found, logprobs.grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "low", "high"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.0, -2.0, 2.0, 2.0, 0, 0),
        (1.1, 1.0, -1.1, -1.1, 0, 0),  # inside: d(-ratio A)/d logprob = -ratio A
        (1.5, 1.0, -1.28, 0.0, 0, 1),  # rewarded and far above: held at 1 + 0.28, no gradient
        (1.5, -1.0, 1.5, 1.5, 0, 0),  # punished and above: pulled back without a bound
        (0.5, 1.0, -0.5, -0.5, 0, 0),  # rewarded and below: pulled back without a bound
        (0.5, -1.0, 0.8, 0.0, 1, 0),  # punished and far below: held at 1 - 0.2
        (0.5, 0.0, 0.0, 0.0, 0, 0),  # no advantage: nothing is held
        (1.25, 1.0, -1.25, -1.25, 0, 0),  # between the low width and the high one
    ],
)
def test_one_token_by_hand(ratio: float, advantage: float, loss: float, gradient: float, low: int, high: int) -> None:
    found, gradients = sums([ratio], [advantage], low=0.2, high=0.28)
    assert float(found.loss.detach()) == pytest.approx(loss, abs=1e-12)
    assert gradients.item() == pytest.approx(gradient, abs=1e-12)
    assert (int(found.clipped_low), int(found.clipped_high)) == (low, high)


def test_sums_not_means() -> None:
    found, _ = sums([1.0, 1.5, 0.5], [1.0, 1.0, -1.0])
    assert float(found.policy_loss) == pytest.approx(-1.0 - 1.2 + 0.8)
    assert float(found.ratio) == pytest.approx(3.0)
    assert float(found.ratio_max) == pytest.approx(1.5)
    assert float(found.drift) == pytest.approx(math.log(1.5) + LN2)
    assert int(found.tokens) == 3


def test_k3_by_hand() -> None:
    # reference twice as likely: 2 - ln 2 - 1; half as likely: 1/2 + ln 2 - 1; equal: 0.
    found = k3(
        torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64),
        torch.tensor([LN2 - 1, -LN2 - 1, -1.0], dtype=torch.float64),
    )
    torch.testing.assert_close(found, torch.tensor([1 - LN2, LN2 - 0.5, 0.0], dtype=torch.float64))


def test_k3_in_the_loss_and_its_gradient() -> None:
    # d k3 / d logprob = 1 - exp(reference - logprob): pulls towards the reference from both sides.
    logprobs = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([LN2 - 1, -LN2 - 1, -1.0], dtype=torch.float64)
    found = clipped_surrogate_sums(
        logprobs,
        logprobs.detach(),
        reference,
        torch.zeros(3, dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.2,
        kl_coef=0.5,
    )
    found.loss.backward()
    assert float(found.kl) == pytest.approx(0.5)
    assert float(found.loss.detach()) == pytest.approx(0.25)
    torch.testing.assert_close(logprobs.grad, torch.tensor([-0.5, 0.25, 0.0], dtype=torch.float64))


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_k3_is_never_negative(logprob: float, reference: float) -> None:
    assert float(k3(torch.tensor(logprob, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64))) >= 0


def test_k3_estimates_the_kl() -> None:
    # Exactly, as an expectation over the policy's own distribution.
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.2, 0.6]).double()
    expected = (policy * (policy / reference).log()).sum()
    torch.testing.assert_close((policy * k3(policy.log(), reference.log())).sum(), expected)


def test_masked_tokens_count_nowhere_whatever_stands_there() -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, math.nan]], requires_grad=True)
    old = torch.tensor([[-1.5, -2.0], [-3.0, -math.inf]])
    reference = torch.tensor([[-1.0, -2.5], [-3.0, math.inf]])
    advantages = torch.tensor([[1.0, 1.0], [-1.0, math.nan]])
    mask = torch.tensor([[True, True], [True, False]])
    found = clipped_surrogate_sums(
        logprobs, old, reference, advantages, clip_low=0.2, clip_high=0.2, kl_coef=0.04, mask=mask
    )
    kept = clipped_surrogate_sums(
        logprobs[mask], old[mask], reference[mask], advantages[mask], clip_low=0.2, clip_high=0.2, kl_coef=0.04
    )
    for name in LossSums.__slots__:
        torch.testing.assert_close(getattr(found, name), getattr(kept, name))
    found.loss.backward()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
    assert logprobs.grad[1, 1] == 0
