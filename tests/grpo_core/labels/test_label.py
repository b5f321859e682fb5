"""What a person's word means, and whose word is the last."""

from functools import partial
from typing import Any

import pytest
import said
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.labels.config import LabelsConfig
from grpo_core.labels.label import Label, from_table, latest, meaning, to_table


@pytest.mark.parametrize(
    ("name", "value", "is_expectation", "expected"),
    [
        ("verdict", "ok", False, ("verdict", "ok")),
        ("Verdict ", " WRONG ", False, ("verdict", "wrong")),
        ("verdict", True, False, ("verdict", "ok")),
        ("verdict", False, False, ("verdict", "wrong")),
        ("verdict", "no", False, ("verdict", "wrong")),
        ("verdict", "unparsable", False, ("verdict", "unparsable")),
        ("verdict", "timeout", False, ("comment", "timeout")),  # no person can say that of a text
        ("verdict", "maybe", False, ("comment", "maybe")),
        ("verdict", "ok", True, ("comment", "ok")),
        ("gold", "42", True, ("gold", "42")),
        ("expected_answer", 42, True, ("gold", "42")),
        ("expected_response", ["a", "b"], True, ("gold", '["a", "b"]')),
        ("gold", " ", True, ("comment", "")),
        ("gold", None, True, ("comment", "null")),
        ("gold", "42", False, ("comment", "42")),  # a gold is an expectation
        ("tier", "Top", False, ("tier", "top")),
        ("tier", 2.0, False, ("tier", "2")),  # MLflow's servers give every number as a float
        ("tier", "0", False, ("tier", "0")),
        ("tier", -1, False, ("comment", "-1")),
        ("tier", 1.5, False, ("comment", "1.5")),
        ("tier", "nan", False, ("comment", "nan")),
        ("tier", "inf", False, ("comment", "inf")),
        ("tone", "rude", False, ("comment", "rude")),
        ("tone", None, False, ("comment", "")),
        ("tone", {"b": 1, "a": "é"}, False, ("comment", '{"a": "é", "b": 1}')),
    ],
)
def test_meaning(name: str, value: Any, is_expectation: bool, expected: tuple[str, str]) -> None:
    assert meaning(name, value, is_expectation=is_expectation) == expected


label = partial(said.label, extracted="42", completion="so 42", reward=1.0)


def test_the_last_word_of_each_person_counts() -> None:
    first = label(value="ok", at="2026-01-01T00:00:00.000Z")
    second = label(value="wrong", at="2026-01-02T00:00:00.000Z", assessment_id="a-2")
    other = label(who="bob", assessment_id="a-3")
    tone, style = (label(kind="comment", name=name, value="x", assessment_id=f"a-{name}") for name in ("tone", "style"))
    assert latest([second, first, other]) == [second, other]
    assert latest([style, tone]) == [style, tone]  # two remarks of one person stand beside each other


labels = st.lists(
    st.builds(
        label,
        rollout_id=st.sampled_from(["0001/a/0", "0001/a/1"]),
        kind=st.sampled_from(["verdict", "gold", "comment"]),
        name=st.sampled_from(["verdict", "tone"]),
        who=st.sampled_from(["ann", "bob"]),
        at=st.sampled_from(["2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"]),
        extracted=st.none() | st.text(max_size=3),
        reward=st.none() | st.floats(allow_nan=False),
        completion=st.text(max_size=3),
    ),
    max_size=8,
).map(
    lambda rows: [
        label(**{f: getattr(r, f) for f in Label.__slots__} | {"assessment_id": str(n)}) for n, r in enumerate(rows)
    ]
)


@settings(deadline=None)
@given(labels, st.randoms(use_true_random=False))
def test_the_last_word_depends_on_no_order_and_stays_the_last(rows: list[Label], chance: Any) -> None:
    found = latest(rows)
    shuffled = list(rows)
    chance.shuffle(shuffled)
    assert latest(shuffled) == found == latest(found)
    keys = {(r.rollout_id, r.kind, r.who, r.name if r.kind == "comment" else "") for r in rows}
    assert len(found) == len(keys)


@settings(deadline=None)
@given(labels)
def test_a_table_holds_them_whole(rows: list[Label]) -> None:
    assert from_table(to_table(rows)) == rows


def test_off_is_off_however_yaml_reads_it() -> None:
    assert [LabelsConfig.model_validate({"source": source}).source for source in (False, "off")] == ["off", "off"]
    assert LabelsConfig().source == "mlflow"
