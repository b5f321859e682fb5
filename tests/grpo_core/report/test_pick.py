"""What of a round is shown: something of every kind, and the same however the rows lie."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.report.pick import best_and_worst, covering_groups, disagreements, hash_order, worth_labelling
from grpo_core.report.rows import Row

ORDER = hash_order(1, "test")


def row(prompt: str, index: int, reward: float | None = 0.0, verdict: str = "wrong", **given: Any) -> Row:
    values: dict[str, Any] = {
        "extracted": None,
        "gold": "1",
        "components": {},
        "detail": "",
        "advantage": 0.0,
        "in_loss": True,
        "text": "t",
        "finish_reason": "stop",
        "length": 1,
    }
    return Row(rollout_id=f"0001/{prompt}/{index}", prompt_id=prompt, verdict=verdict, reward=reward, **values | given)


rows = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from(["ok", "wrong", "unparsable", "timeout"]),
        st.sampled_from([None, -1.0, 0.0, 0.5, 1.0]),
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_the_first_groups_hold_the_best_the_worst_and_each_verdict(found: list[Any], chance: Any) -> None:
    columns = [list(column) for column in zip(*found, strict=True)]
    order = covering_groups(*columns, ORDER)
    assert sorted(order) == sorted({prompt for prompt, _, _ in found})
    shuffled = list(found)
    chance.shuffle(shuffled)
    assert covering_groups(*[list(column) for column in zip(*shuffled, strict=True)], ORDER) == order
    kinds = len({verdict for _, verdict, _ in found}) + 2
    seen = [one for one in found if one[0] in order[:kinds]]
    assert {verdict for _, verdict, _ in seen} == {verdict for _, verdict, _ in found}
    rewards = [reward for _, _, reward in found if reward is not None]
    shown = [reward for _, _, reward in seen if reward is not None]
    assert not rewards or (max(shown), min(shown)) == (max(rewards), min(rewards))


@settings(deadline=None)
@given(rows, st.integers(0, 12), st.randoms(use_true_random=False))
def test_rollouts_worth_labelling(found: list[Any], count: int, chance: Any) -> None:
    made = [row(prompt, n, reward, verdict) for n, (prompt, verdict, reward) in enumerate(found)]
    chosen = worth_labelling(made, count, ORDER)
    assert len(chosen) == len({one.rollout_id for one in chosen}) == min(count, len(made))
    chance.shuffle(made)
    assert worth_labelling(made, count, ORDER) == chosen
    verdicts = {one.verdict for one in made}
    rewards = [one.reward for one in made if one.reward is not None]
    if count >= len(verdicts) + 2:
        assert {one.verdict for one in chosen} == verdicts
        assert not rewards or {max(rewards), min(rewards)} <= {one.reward for one in chosen}


def test_best_and_worst_of_a_group() -> None:
    group = [row("a", 0, 0.5), row("a", 1, None, "timeout"), row("a", 2, 1.0), row("a", 3, 0.25)]
    best, worst = best_and_worst(group, ORDER)
    assert (best.rollout_id, worst.rollout_id) == ("0001/a/2", "0001/a/3")
    best, worst = best_and_worst(group[:2], ORDER)
    assert (best.rollout_id, worst.rollout_id) == ("0001/a/0", "0001/a/1")
    best, worst = best_and_worst([row("a", n, 1.0) for n in range(2)], ORDER)
    assert best != worst
    assert best_and_worst(group[1:2], ORDER) == (group[1], group[1])


def test_components_that_disagree_by_hand() -> None:
    # right: 1, 0, 0, 0 (mean 1/4); form: 0, 1, 1, null (mean 2/3). Both have the range 1.
    right, form = [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, None]
    group = [row("a", n, components={"right": right[n], "form": form[n], "seen": 3.0}) for n in range(4)]
    found = disagreements(group)
    assert [one.rollout_id for one, _ in found] == ["0001/a/0", "0001/a/1", "0001/a/2"]
    assert found[0][1] == pytest.approx({"right": 0.75, "form": -2 / 3})
    assert found[1][1] == pytest.approx({"right": -0.25, "form": 1 / 3})
    assert disagreements([row("a", 0, components={"right": 1.0, "form": 0.0})]) == []  # alone, nothing stands above
