import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.policy.batching import Microbatch, TrainingRollout, ideal_row_tokens, microbatches, minibatches
from grpo_core.seeding import hash64


def rollout(prompt_id: str, prompt: int, tokens: int) -> TrainingRollout:
    return TrainingRollout(prompt_id, np.arange(prompt), np.arange(tokens), np.zeros(tokens), 1.0)


def rows_of(batches: list[Microbatch]) -> list[list[tuple[int, list[int]]]]:
    return [[(len(g.prompt_ids), [len(c) for c in g.completions]) for g in batch.groups] for batch in batches]


def test_minibatches_are_whole_groups_ordered_by_hash() -> None:
    rollouts = [rollout(f"p{number % 5}", 2, 1 + number) for number in range(15)]
    found = minibatches(rollouts, 2, seed=3, round_number=7, epoch=1)
    order = sorted((f"p{n}" for n in range(5)), key=lambda p: hash64(3, 7, 1, p))
    assert [list(dict.fromkeys(r.prompt_id for r in part)) for part in found] == [order[:2], order[2:]]
    assert all(len([r for r in part if r.prompt_id == p]) == 3 for part in found for p in {r.prompt_id for r in part})
    orders = {
        tuple(r.prompt_id for r in minibatches(rollouts, 1, seed=3, round_number=7, epoch=e)[0]) for e in range(6)
    }
    assert len(orders) > 1  # shuffled anew every epoch


@pytest.mark.parametrize(
    ("groups", "asked", "sizes"), [(1, 4, [1]), (3, 4, [1, 1, 1]), (5, 4, [1, 1, 1, 2]), (0, 2, [])]
)
def test_never_an_empty_minibatch(groups: int, asked: int, sizes: list[int]) -> None:
    rollouts = [rollout(f"p{number}", 2, 1) for number in range(groups)]
    assert [len(part) for part in minibatches(rollouts, asked, seed=0, round_number=1, epoch=0)] == sizes


def test_rows_by_hand() -> None:
    # Prompt 4 and completions of 3 take rows of 4 + 2k; a prompt of 9 with one completion of 6 a row of 14.
    rollouts = [rollout("a", 4, 3) for _ in range(4)] + [rollout("b", 9, 6)]
    assert rows_of(microbatches(rollouts, 40, 1000.0)) == [[(9, [6]), (4, [3, 3, 3, 3])]]
    assert rows_of(microbatches(rollouts, 26, 1000.0)) == [[(9, [6])], [(4, [3, 3, 3, 3])]]
    # A budget of 8 holds the prompt and two completions: the group is split and the prompt repeated.
    assert rows_of(microbatches(rollouts, 8, 1000.0)) == [[(9, [6])], [(4, [3, 3])], [(4, [3, 3])]]
    # The padded form: one completion a row, 14 then 6 tokens wide.
    assert rows_of(microbatches(rollouts, 28, None)) == [[(9, [6]), (4, [3])], [(4, [3]), (4, [3]), (4, [3])]]


def test_long_completions_do_not_share_a_row() -> None:
    # P = 100, crossover 3,000: kC = sqrt(100 * 3100) = 556. Eight completions of 2,048 would be a row of 16,484.
    assert ideal_row_tokens(100, 3000.0) == pytest.approx(656.8, abs=0.03)
    rollouts = [rollout("a", 100, 2048) for _ in range(8)]
    assert rows_of(microbatches(rollouts, 100_000, 3000.0)) == [[(100, [2048])] * 8]
    assert rows_of(microbatches(rollouts, 100_000, math.inf)) == [[(100, [2048] * 8)]]  # hidden pairs cost nothing
    costs = {k: (100 + k * 60) * (1 + (100 + k * 60) / 3000) / k for k in range(1, 40)}
    assert min(costs, key=costs.__getitem__) == round((ideal_row_tokens(100, 3000.0) - 100) / 60)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 20)), min_size=1, max_size=30),
    st.integers(1, 80),
    st.sampled_from([None, 1.0, 50.0, math.inf]),
)
def test_every_rollout_once_within_the_budget(
    shape: list[tuple[int, int]], budget: int, crossover: float | None
) -> None:
    rollouts = [rollout(f"p{group}", 2 + group, tokens) for group, tokens in shape]
    batches = microbatches(rollouts, budget, crossover)
    assert sorted(id(r) for batch in batches for r in batch.rollouts) == sorted(map(id, rollouts))
    assert sum(batch.tokens for batch in batches) == sum(tokens for _, tokens in shape)
    for batch in batches:
        width = max(group.tokens for group in batch.groups)
        alone = len(batch.rollouts) == 1
        assert alone or len(batch.groups) * width <= budget
        flat = [completion for group in batch.groups for completion in group.completions]
        assert [id(ids) for ids in flat] == [id(r.completion_ids) for r in batch.rollouts]


@pytest.mark.parametrize(("prompt", "completion", "logprobs"), [([], [1], [0.0]), ([1], [], []), ([1], [1, 2], [0.0])])
def test_a_rollout_that_does_not_fit_together_is_refused(
    prompt: list[int], completion: list[int], logprobs: list[float]
) -> None:
    with pytest.raises(ValueError, match="prompt 'x'"):
        TrainingRollout("x", np.array(prompt), np.array(completion), np.array(logprobs), 0.0)
