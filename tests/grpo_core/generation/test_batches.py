"""Batches by a budget of cached tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.generation.batches import batches
from grpo_core.generation.engine import Request, SamplingParams
from grpo_core.generation.transformers_engine import TransformersEngine


def request(prompt: int, seeds: range) -> Request:
    return Request(f"p{seeds.start}", [1] * prompt, list(seeds))


def shape(found: list[list[Request]]) -> list[list[tuple[int, int]]]:
    return [[(len(one.prompt_ids), len(one.seeds)) for one in batch] for batch in found]


def test_batches_worked_out_by_hand() -> None:
    # Rows of 10 + 10 tokens: a budget of 100 holds five. The third request is wider, 30 a row: three rows.
    asked = [request(10, range(2)), request(10, range(2, 4)), request(20, range(4, 8))]
    assert shape(batches(asked, 10, 100)) == [[(10, 2), (10, 2)], [(20, 3)], [(20, 1)]]
    assert shape(batches(asked, 10, 1000)) == [[(10, 2), (10, 2), (20, 4)]]
    assert batches([], 10, 100) == []


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=8),
    new_tokens=st.integers(1, 40),
    budget=st.integers(1, 800),
)
def test_no_batch_is_over_the_budget_and_nothing_is_lost(
    sizes: list[tuple[int, int]], new_tokens: int, budget: int
) -> None:
    asked, first = [], 0
    for prompt, count in sizes:
        asked.append(request(prompt, range(first, first + count)))
        first += count
    found = batches(asked, new_tokens, budget)
    assert [seed for batch in found for one in batch for seed in one.seeds] == list(range(first))
    for batch in found:
        rows = sum(len(one.seeds) for one in batch)
        assert rows * (max(len(one.prompt_ids) for one in batch) + new_tokens) <= budget or rows == 1


def test_completions_do_not_depend_on_the_budget(tiny) -> None:
    asked = [
        Request("a", tiny[1]("Hi")["input_ids"], range(5)),
        Request("b", tiny[1]("7 x 8 =")["input_ids"], range(3)),
    ]
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=12)
    heard: list[tuple[int, int]] = []
    whole = TransformersEngine(*tiny).generate(asked, sampling)
    parts = TransformersEngine(*tiny, cache_tokens=60).generate(asked, sampling, lambda *told: heard.append(told))
    for one, other in zip((c for g in whole for c in g), (c for g in parts for c in g), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert [len(group) for group in parts] == [5, 3]
    assert heard[-1] == (8, 8)
    assert heard == sorted(heard)
