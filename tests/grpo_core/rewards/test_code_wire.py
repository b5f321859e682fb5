"""Plain data as bytes: exact, strict, and nothing else."""

import collections
import datetime
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.rewards.inside.wire import Malformed, Reader, Writer, pack, unpack

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary(max_size=8) | st.just(...)
    | st.text(st.characters(exclude_categories=()), max_size=8) | st.complex_numbers(allow_nan=False)
    | st.fractions() | st.decimals(allow_nan=False) | st.dates() | st.timedeltas()
    | st.datetimes().map(lambda moment: moment.replace(fold=0)) | st.times().map(lambda time: time.replace(fold=0))
)  # fmt: skip
keys = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4) | st.binary(max_size=4).map(bytearray)
        | st.lists(inner, max_size=3).map(collections.deque)
        | st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict)
    ),
    max_leaves=8,
)  # fmt: skip


def shape(value: Any) -> Any:
    """A value with the exact type of each part; two that are equal so are the same."""
    if isinstance(value, dict):
        return type(value), [(shape(key), shape(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), [shape(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, map(shape, value)))
    return type(value), repr(value)


@settings(max_examples=60)
@given(values)
def test_what_is_read_is_what_was_written(value: Any) -> None:
    assert shape(unpack(pack(value))) == shape(value)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(data)


@settings(max_examples=60)
@given(values, st.data())
def test_a_damaged_message_is_read_as_plain_data_or_refused(value: Any, data: st.DataObject) -> None:
    message = bytearray(pack(value))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.sampled_from(list(b"LDSTZX=<!@or0,59 \n\xff")))
    try:
        read = unpack(bytes(message))
    except Malformed:
        return
    shape(read)


def test_derived_classes_lose_what_they_add() -> None:
    class Equal(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Texts(list[str]):
        pass

    point = collections.namedtuple("point", "x y")
    read = unpack(pack([Equal(7), Texts(["a"]), point(1, 2), True]))
    assert [type(part) for part in read] == [int, list, tuple, bool]
    assert read == [7, ["a"], (1, 2), True]


def test_shared_and_circular_references_survive() -> None:
    inner: list[Any] = [1]
    inner.append(inner)
    first, second = unpack(pack((inner, [inner])))
    assert first[1] is first
    assert second[0] is first


def test_deep_nesting_is_no_matter_for_lists_and_refused_for_tuples() -> None:
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    read, depth = unpack(pack(deep)), 0
    while read:
        read, depth = read[0], depth + 1
    assert depth == 20_000
    text = "T\n" + "".join(f"T @{number}\n" for number in range(5_000)) + "! @5000"
    with pytest.raises(Malformed, match="too deep"):
        unpack(b"%d\n%b" % (len(text), text.encode()))


def test_special_values() -> None:
    assert math.isnan(unpack(pack(math.nan)))
    assert math.copysign(1, unpack(pack(-0.0))) == -1
    assert unpack(pack(10**5000)) == 10**5000
    assert unpack(pack([range(1, 9, 2), {"a": 1}.keys(), Fraction(1, 3), Decimal("1.10"), datetime.timedelta(1)])) == [
        range(1, 9, 2), {"a"}, Fraction(1, 3), Decimal("1.10"), datetime.timedelta(1),
    ]  # fmt: skip


def test_contents_of_what_is_answered_are_put_in_place() -> None:
    given_list, given_set = [1, 2], {1}
    asking = Writer(str)
    asked = asking.message((given_list, given_set))
    reader = Reader(str)
    theirs = reader.value(asked)
    theirs[0].append(theirs[0])
    theirs[1].clear()
    answer = Writer(str, reader.containers).message(theirs[0], changed=[0, 1])
    assert Reader(str, asking.containers).value(answer) is given_list
    assert given_list[:2] == [1, 2]
    assert given_list[2] is given_list
    assert given_set == set()


def test_an_object_is_no_plain_data() -> None:
    with pytest.raises(TypeError, match="no plain data"):
        pack([object()])
    with pytest.raises(Malformed):
        unpack(b"5\n! h3c")
