import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.errors import UserError
from grpo_core.prompts.plan import plan_round
from grpo_core.schemas import PLAN

IDS = [f"{number:016x}" for number in range(10)]


def _ids(round_number: int, prompts_per_round: int = 4, seed: int = 0, ids: list[str] = IDS) -> list[str]:
    plan = plan_round(ids, round_number=round_number, prompts_per_round=prompts_per_round, seed=seed)
    return plan["prompt_id"].to_pylist()


def test_positions_run_on_and_epochs_hold_whole_rounds_only() -> None:
    # 10 prompts, 4 a round: two rounds an epoch, two prompts sit each epoch out.
    plans = [plan_round(IDS, round_number=number, prompts_per_round=4, seed=0) for number in (1, 2, 3)]
    assert [plan["position"].to_pylist() for plan in plans] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [set(plan["epoch"].to_pylist()) for plan in plans] == [{0}, {0}, {1}]
    assert all(plan.schema.equals(PLAN) for plan in plans)


def test_prompts_sit_out_in_turn() -> None:
    sitting_out = [frozenset(IDS) - set(_ids(2 * epoch + 1)) - set(_ids(2 * epoch + 2)) for epoch in range(30)]
    assert all(len(out) == 2 for out in sitting_out)
    assert frozenset().union(*sitting_out) == set(IDS)


def test_a_round_may_take_every_prompt() -> None:
    assert sorted(_ids(1, 10)) == sorted(_ids(2, 10)) == IDS
    assert _ids(1, 10) != _ids(2, 10)


def test_the_seed_decides_the_order() -> None:
    assert _ids(1, 10, seed=1) != _ids(1, 10, seed=2)


def test_more_prompts_a_round_than_there_are_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"data\.prompts_per_round is 11, but only 10"):
        _ids(1, 11)


@pytest.mark.parametrize(("round_number", "per_round", "ids"), [(0, 4, IDS), (1, 0, IDS), (1, 2, ["a", "a"])])
def test_a_programmer_s_mistakes_are_refused(round_number: int, per_round: int, ids: list[str]) -> None:
    with pytest.raises(ValueError, match="must"):
        _ids(round_number, per_round, ids=ids)


@given(
    numbers=st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
    per_round=st.integers(1, 40),
    round_number=st.integers(1, 10**6),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
def test_a_round_is_distinct_known_and_free_of_the_order_given(
    numbers: set[int], per_round: int, round_number: int, seed: int, data: st.DataObject
) -> None:
    ids = [f"{number:016x}" for number in sorted(numbers)]
    per_round = min(per_round, len(ids))
    taken = _ids(round_number, per_round, seed, ids)
    assert len(set(taken)) == per_round
    assert set(taken) <= set(ids)
    assert taken == _ids(round_number, per_round, seed, data.draw(st.permutations(ids)))


@given(size=st.integers(1, 40), per_round=st.integers(1, 40), epoch=st.integers(0, 50), seed=st.integers(0, 2**32))
def test_no_prompt_comes_twice_in_an_epoch(size: int, per_round: int, epoch: int, seed: int) -> None:
    ids = [f"p{number}" for number in range(size)]
    per_round = min(per_round, size)
    rounds = size // per_round
    taken = [
        prompt_id
        for number in range(epoch * rounds + 1, (epoch + 1) * rounds + 1)
        for prompt_id in _ids(number, per_round, seed, ids)
    ]
    assert len(taken) == len(set(taken)) == rounds * per_round
    assert size - len(taken) < per_round
