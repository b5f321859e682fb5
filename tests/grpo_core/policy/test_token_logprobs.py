"""Logprob and entropy from logits, against torch's own log_softmax and its gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.policy import token_logprobs as module
from grpo_core.policy.token_logprobs import token_logprobs


def plain(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    distribution = torch.log_softmax(logits, -1)
    return distribution.gather(-1, targets[:, None])[:, 0], -(distribution.exp() * distribution).sum(-1)


@pytest.mark.parametrize("block", [1, 12, 2**20])
@pytest.mark.parametrize("through_entropy", [False, True])
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 3.0, 40.0]), rows=st.integers(1, 9))
def test_values_and_gradients_are_those_of_log_softmax(
    block: int, through_entropy: bool, seed: int, scale: float, rows: int
) -> None:
    numbers = torch.Generator().manual_seed(seed)
    raw = (torch.randn(rows, 6, generator=numbers) * scale).double()
    targets = torch.randint(0, 6, (rows,), generator=numbers)
    up, up_entropy = torch.randn(2, rows, generator=numbers).double()
    expected_at, found_at = raw.clone().requires_grad_(), raw.float().requires_grad_()
    expected = plain(expected_at, targets)
    loss = (expected[0] * up).sum() + (expected[1] * up_entropy).sum() * through_entropy
    (gradient,) = torch.autograd.grad(loss, expected_at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_LOGITS", block)
        found = token_logprobs(found_at * 1.0, targets, True, through_entropy)
        assert found[1].requires_grad == through_entropy
        loss = (found[0] * up.float()).sum()
        if through_entropy:
            loss = loss + (found[1] * up_entropy.float()).sum()
        loss.backward()
    for one, other in zip((*found, found_at.grad), (*expected, gradient), strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=2e-5)


def test_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    logprobs, entropy = token_logprobs(logits.clone(), torch.tensor([1]), True)
    assert logprobs.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))
    assert token_logprobs(logits, torch.tensor([1]), False)[1].tolist() == [0.0]


def test_no_rows() -> None:
    logits = torch.zeros(0, 4, requires_grad=True)
    logprobs, entropy = token_logprobs(logits * 1.0, torch.zeros(0, dtype=torch.long), True)
    logprobs.sum().backward()
    assert logprobs.shape == entropy.shape == (0,)
