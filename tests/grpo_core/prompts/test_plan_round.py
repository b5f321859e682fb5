"""The plan, over many rounds: each round's outcome goes into what is known, as in a run."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.prompts.difficulty import Difficulty, read_difficulty, update_difficulty
from grpo_core.prompts.plan import Candidate, plan_round
from grpo_core.schemas import PLAN, REWARDS

IDS = [f"{number:016x}" for number in range(10)]
Row = Mapping[str, object]
NO_BAND = {"band": None}


def rewards(outcomes: Mapping[str, list[bool]]) -> pa.Table:
    rows = [
        {
            "rollout_id": f"1/{prompt}/{index}",
            "round": 1,
            "prompt_id": prompt,
            "sample_index": index,
            "verdict": "ok" if right else "wrong",
            "extracted": None,
            "gold": "1",
            "components": [],
            "reward": float(right),
            "detail": "",
        }
        for prompt, group in outcomes.items()
        for index, right in enumerate(group)
    ]
    return pa.Table.from_pylist(rows, schema=REWARDS)


def play(
    candidates: list[Candidate] | Callable[[int], list[Candidate]],
    config: DataConfig,
    rounds: int,
    solve: Callable[[str, int], list[bool]] = lambda _, __: [True, False],
    seed: int = 0,
) -> list[list[Row]]:
    """The plans of a run whose rollouts come out as ``solve(prompt, round)`` says; the reserve is never needed."""
    known: dict[str, Difficulty] = {}
    plans = []
    for number in range(1, rounds + 1):
        there = candidates(number) if callable(candidates) else candidates
        plan = plan_round(there, known, config, round_number=number, seed=seed)
        assert plan.schema.equals(PLAN)
        plans.append(plan.to_pylist())
        taken = {row["prompt_id"]: row["epoch"] for row in plans[-1] if not row["reserve"]}
        outcomes = rewards({prompt: solve(prompt, number) for prompt in taken})
        known = read_difficulty(update_difficulty(known, taken, outcomes, number, config.difficulty))
    return plans


def some(count: int, source: str = "s") -> list[Candidate]:
    return [Candidate(f"{source}{number}", source) for number in range(count)]


def config(per_round: int, **keys: object) -> DataConfig:
    return DataConfig.model_validate({"prompts_per_round": per_round, **keys})


def ids(plan: list[Row]) -> list[str]:
    return [str(row["prompt_id"]) for row in plan]


def test_positions_run_on_and_epochs_hold_whole_rounds_only() -> None:
    # 10 prompts, 4 a round: two rounds an epoch, two prompts sit each epoch out.
    plans = play(some(10), config(4), 3)
    assert [[row["position"] for row in plan] for plan in plans] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [{row["epoch"] for row in plan} for plan in plans] == [{0}, {0}, {1}]
    assert {row["turn"] for plan in plans for row in plan} == {"epoch"}


def test_prompts_sit_out_in_turn() -> None:
    plans = play(some(10), config(4), 60)
    everything = set(ids(plans[0]) + ids(plans[1]) + [c.prompt_id for c in some(10)])
    sitting_out = [everything - set(ids(plans[n])) - set(ids(plans[n + 1])) for n in range(0, 60, 2)]
    assert all(len(out) == 2 for out in sitting_out)
    assert set().union(*sitting_out) == everything


def test_the_seed_decides_the_order() -> None:
    assert ids(play(some(10), config(10), 1, seed=1)[0]) != ids(play(some(10), config(10), 1, seed=2)[0])


def test_more_prompts_a_round_than_there_are_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"data\.prompts_per_round is 11, but only 10"):
        play(some(10), config(11), 1)


def test_a_programmer_s_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_round(some(2), {}, config(1), round_number=0, seed=0)
    with pytest.raises(ValueError, match="different"):
        plan_round([*some(1), *some(1)], {}, config(1), round_number=1, seed=0)


@given(
    size=st.integers(1, 30),
    per_round=st.integers(1, 30),
    seed=st.integers(0, 2**32),
    band=st.sampled_from([None, (0.1, 0.9), (0.3, 0.6)]),
    retry=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    extra=st.sampled_from([0.0, 0.5, 3.0]),
    curriculum=st.sampled_from(["shuffle", "pass_rate", "column"]),
    skill=st.dictionaries(st.integers(0, 29), st.sampled_from([0, 1, 4, 8])),
)
@settings(deadline=None, max_examples=80)
def test_no_prompt_comes_twice_in_an_epoch_and_every_round_is_full(
    size, per_round, seed, band, retry, extra, curriculum, skill
) -> None:
    per_round = min(per_round, size)
    candidates = [Candidate(f"s{n}", "s", float(n % 5) if n % 7 else None) for n in range(size)]
    keys = {
        "curriculum": curriculum,
        "difficulty": {"band": band, "retry_share": retry},
        "dynamic_sampling": {"max_extra": extra},
    }

    def solve(prompt: str, _: int) -> list[bool]:
        right = skill.get(int(prompt[1:]), 4)
        return [True] * right + [False] * (8 - right)

    plans = play(candidates, config(per_round, **keys), 12, solve, seed)
    taken = [[row for row in plan if not row["reserve"]] for plan in plans]
    assert all(len(plan) == per_round for plan in taken)
    pairs = [(row["epoch"], row["prompt_id"]) for plan in taken for row in plan]
    assert len(set(pairs)) == len(pairs)
    assert all(len(set(ids(plan))) == len(plan) <= per_round + math.ceil(extra * per_round) for plan in plans)
    epochs = [epoch for epoch, _ in pairs]
    assert epochs == sorted(epochs)
    # The same again, whatever the order in which the prompts are given.
    assert play(candidates[::-1], config(per_round, **keys), 12, solve, seed) == plans


def test_what_is_always_or_never_solved_is_retired_and_tried_again() -> None:
    hard, easy = {"s0", "s1"}, {"s2", "s3"}

    def solve(prompt: str, _: int) -> list[bool]:
        return [prompt in easy] * 8 if prompt in hard | easy else [True, False] * 4

    plans = play(some(12), config(4, difficulty={"retry_share": 0.25}), 40, solve)
    later = [row for plan in plans[3:] for row in plan]  # the first epoch is three rounds
    by_turn = defaultdict(Counter)
    for row in later:
        by_turn[row["turn"]][row["prompt_id"]] += 1
    assert set(by_turn["retry"]) == hard | easy  # no others, and all of them
    assert not (hard | easy) & set(by_turn["epoch"])
    assert max(by_turn["retry"].values()) - min(by_turn["retry"].values()) <= 1  # those that wait longest first
    # Without a band all come equally often.
    plans = play(some(12), config(4, difficulty=NO_BAND), 30, solve)
    counts = Counter(prompt for plan in plans for prompt in ids(plan))
    assert set(counts.values()) == {10}


def test_a_retired_prompt_comes_back_when_the_policy_has_changed() -> None:
    def solve(prompt: str, number: int) -> list[bool]:
        return [prompt != "s0" or number > 8] * 4 + [False] * 4 if prompt != "s0" or number > 8 else [False] * 8

    plans = play(some(8), config(4, difficulty={"retry_share": 0.25, "memory": 0.5}), 30, solve)
    turns = [row["turn"] for plan in plans for row in plan if row["prompt_id"] == "s0"]
    assert turns[0] == "epoch"
    assert "retry" in turns
    assert turns[-2:] == ["epoch", "epoch"]


def test_retired_prompts_fill_a_round_that_active_ones_can_t() -> None:
    plans = play(some(6), config(4, difficulty={"retry_share": 0.0}), 8, lambda prompt, _: [prompt != "s5"] * 8)
    turns = Counter(row["turn"] for plan in plans[2:] for row in plan)
    assert turns["filler"] > 0
    assert all(len(plan) == 4 for plan in plans)


def test_a_curriculum_by_column_takes_the_smallest_first_and_rows_without_it_last() -> None:
    candidates = [Candidate(f"s{n}", "s", None if n == 0 else float(-n)) for n in range(6)]
    plans = play(candidates, config(2, curriculum="column", difficulty=NO_BAND), 3)
    assert [set(ids(plan)) for plan in plans] == [{"s5", "s4"}, {"s3", "s2"}, {"s1", "s0"}]


def test_a_curriculum_by_pass_rate_takes_what_is_solved_most_often_first() -> None:
    def solve(prompt: str, _: int) -> list[bool]:
        return [True] * (int(prompt[1:]) + 1) + [False] * (7 - int(prompt[1:]))

    plans = play(some(6), config(2, curriculum="pass_rate", difficulty=NO_BAND), 6, solve)
    assert [set(ids(plan)) for plan in plans[3:]] == [{"s5", "s4"}, {"s3", "s2"}, {"s1", "s0"}]


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=4),
    per_round=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=40)
def test_the_sources_of_a_mix_come_by_their_weights(weights, per_round, seed) -> None:
    sources = [SourceConfig(name=f"m{n}", weight=weight) for n, weight in enumerate(weights)]
    candidates = [Candidate(f"{source.label}-{n}", source.label) for source in sources for n in range(40)]
    plans = play(candidates, config(per_round, sources=sources, difficulty=NO_BAND), 25, seed=seed)
    for source in sources:
        share = source.weight / sum(weights) * per_round
        counts = [sum(prompt.startswith(f"{source.label}-") for prompt in ids(plan)) for plan in plans]
        assert all(math.floor(share) <= count <= math.ceil(share) for count in counts)
    pairs = [(row["epoch"], row["prompt_id"]) for plan in plans for row in plan]
    assert len(set(pairs)) == len(pairs)
    assert all(len(plan) == per_round for plan in plans)


def test_the_shares_of_a_mix_are_exact_over_the_rounds() -> None:
    sources = [SourceConfig(name="a", weight=1), SourceConfig(name="b", weight=2)]
    plans = play([*some(50, "a"), *some(50, "b")], config(4, sources=sources, difficulty=NO_BAND), 300)
    share = sum(prompt.startswith("a") for plan in plans for prompt in ids(plan)) / (4 * 300)
    # 4/3 a round by a fair offset: a standard error of sqrt(1/3 * 2/3 / 300) / 4 = 0.0068.
    assert share == pytest.approx(1 / 3, abs=0.03)


def test_a_small_source_gives_what_it_has_and_the_others_the_rest() -> None:
    sources = [SourceConfig(name="a", weight=9), SourceConfig(name="b", weight=1)]
    plans = play([*some(2, "a"), *some(30, "b")], config(10, sources=sources, difficulty=NO_BAND), 3)
    assert [Counter(prompt[0] for prompt in ids(plan)) for plan in plans] == [{"a": 2, "b": 8}] * 3


def test_prompts_that_join_are_taken_from_their_round_on_and_the_plans_before_stay() -> None:
    before = play(some(12), config(4), 2)
    after = play(lambda number: some(12) + (some(8, "new") if number >= 3 else []), config(4), 5)
    assert after[:2] == before
    # The epoch that is going on takes them in: 4 + 8 prompts are left of it, three rounds.
    assert sorted(prompt for plan in after for prompt in ids(plan)) == sorted(
        c.prompt_id for c in [*some(12), *some(8, "new")]
    )
    assert {row["epoch"] for plan in after for row in plan} == {0}


def test_the_reserve_comes_after_the_round_s_own_and_is_bounded() -> None:
    plan = play(some(10), config(4, dynamic_sampling={"max_extra": 1.25}), 1)[0]
    assert [row["reserve"] for row in plan] == [False] * 4 + [True] * 5
    assert len(set(ids(plan))) == 9
    # At the end of an epoch the reserve is what is left of it.
    later = play(some(10), config(4, dynamic_sampling={"max_extra": 1.25}), 2)[1]
    assert [row["reserve"] for row in later] == [False] * 4 + [True] * 2
