import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.generation.engine import SamplingParams
from grpo_core.generation.sampling import draw

TINY_GAP = 1 - 2**-53  # the greatest number that a generator of uniforms gives


def params(temperature=1.0, top_p=1.0, top_k=0):
    return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=1)


def draw_at(logits, uniforms, **keys):
    """``draw`` of one distribution at many uniform numbers."""
    rows = torch.tensor([logits], dtype=torch.float32).expand(len(uniforms), -1)
    tokens, logprobs = draw(rows, torch.tensor(uniforms, dtype=torch.float64), params(**keys))
    return tokens.tolist(), logprobs.tolist()


LOGITS = [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)]  # CDF 0.1, 0.3, 0.6, 1.0


def test_inverse_cdf_by_hand():
    tokens, logprobs = draw_at(LOGITS, [0.0, 0.09, 0.11, 0.29, 0.31, 0.59, 0.61, TINY_GAP])
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3]
    assert logprobs == pytest.approx([LOGITS[t] for t in tokens], abs=1e-6)


def test_temperature_is_inside_the_logprobs():
    # T 1/2 squares the probabilities: 1, 4, 9, 16 of 30.
    tokens, logprobs = draw_at(LOGITS, [0.03, 0.1, 0.4, 0.5], temperature=0.5)
    assert tokens == [0, 1, 2, 3]
    assert logprobs == pytest.approx([math.log(n / 30) for n in (1, 4, 9, 16)], abs=1e-6)


def test_top_k_renormalises():
    tokens, logprobs = draw_at(LOGITS, [0.0, 0.42, 0.43, 0.44, TINY_GAP], top_k=2)
    assert tokens == [2, 2, 3, 3, 3]  # 3/7 = 0.4286
    assert logprobs == pytest.approx([math.log((3, 4)[t - 2] / 7) for t in tokens], abs=1e-6)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, {3}), (0.39, {3}), (0.5, {2, 3}), (0.75, {1, 2, 3}), (0.95, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    tokens, logprobs = draw_at(LOGITS, np.linspace(0, TINY_GAP, 200).tolist(), top_p=top_p)
    assert set(tokens) == kept
    mass = sum(math.exp(LOGITS[t]) for t in kept)
    assert logprobs == pytest.approx([LOGITS[t] - math.log(mass) for t in tokens], abs=1e-6)


def test_top_p_acts_on_what_top_k_left():
    # Of 3/7 and 4/7 the likelier alone reaches 0.5; of the whole distribution it would not.
    assert set(draw_at(LOGITS, [0.0, 0.5, TINY_GAP], top_k=2, top_p=0.5)[0]) == {3}


def test_greedy_takes_the_likeliest_at_temperature_one():
    tokens, logprobs = draw_at(LOGITS, [0.0, TINY_GAP], temperature=0.0)
    assert tokens == [3, 3]
    assert logprobs == pytest.approx([math.log(0.4)] * 2, abs=1e-6)


@pytest.mark.parametrize("vocabulary", [3, 256, 257, 1000])
def test_the_ends_of_the_unit_interval_meet_the_first_and_the_last_possible_token(vocabulary):
    logits = torch.zeros(2, vocabulary)
    logits[:, [0, -1]] = -torch.inf
    tokens, logprobs = draw(logits, torch.tensor([0.0, TINY_GAP], dtype=torch.float64), params())
    assert tokens.tolist() == [1, vocabulary - 2]
    assert logprobs.tolist() == pytest.approx([-math.log(vocabulary - 2)] * 2, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=st.integers(1, 900),
    seed=st.integers(0, 10**6),
    scale=st.floats(0.1, 40),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_equals_a_plain_cdf_in_float64(vocabulary, seed, scale, uniform):
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale
    token, logprob = draw(logits, torch.tensor([uniform], dtype=torch.float64), params())
    exact = torch.log_softmax(logits.double(), dim=-1)[0]
    cdf = exact.exp().cumsum(0).numpy()
    chosen = int(token)
    assert exact[chosen].exp() > 0
    # The weights are float32: the border between two tokens is as exact as that.
    assert cdf[chosen] >= uniform - 1e-6
    assert chosen == 0 or cdf[chosen - 1] <= uniform + 1e-6
    assert float(logprob) == pytest.approx(float(exact[chosen]), abs=1e-5 + 1e-6 * scale)


def test_a_nan_shows_in_the_logprob_instead_of_crashing():
    logits = torch.zeros(2, 300)
    logits[1, 7] = torch.nan
    tokens, logprobs = draw(logits, torch.tensor([0.5, 0.5], dtype=torch.float64), params())
    assert logprobs.isfinite().tolist() == [True, False]
    assert int(tokens.max()) < 300
