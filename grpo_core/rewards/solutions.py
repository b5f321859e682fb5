"""Intervals, finite sets and inequalities as sets of real numbers."""

from typing import Any

import mpmath

from grpo_core.rewards.evaluate import real_value
from grpo_core.rewards.expression import parse, symbols
from grpo_core.rewards.kinds import AllReals, Listing, Reading, Relation, Scalar, SetOperation
from grpo_core.rewards.realsets import EVERYTHING, Piece, RealSet, combined, point
from grpo_core.rewards.tokens import Node, UnreadableError

FLIPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "=": "=", "ne": "ne"}
"""What becomes of a relation whose sides are swapped or negated."""


def real_set(reading: Reading) -> RealSet:
    """The numbers that an interval, a finite set, an inequality or an operation on such describes.

    Raises:
        InexactError: its ends have symbols.
        UnreadableError: it is no set of reals.
    """
    if isinstance(reading, AllReals):
        return EVERYTHING
    if isinstance(reading, SetOperation) and reading.operator == "and":
        sides = real_set(reading.left), real_set(reading.right)
        # x < 1 and x > 2 names the two pieces of one solution: nothing is in both
        return combined(*sides, "intersection") or combined(*sides, "union")
    if isinstance(reading, SetOperation):
        operation = {"cup": "union", "cap": "intersection", "setminus": "difference"}[reading.operator]
        return combined(real_set(reading.left), real_set(reading.right), operation)  # type: ignore[arg-type]
    if isinstance(reading, Listing):
        if reading.brackets == "{}":
            return tuple(point(_end(item.value)) for item in reading.items)
        if reading.brackets and len(reading.items) == 2 and not any(item.name for item in reading.items):
            low, high = (_end(item.value) for item in reading.items)
            if low > high:
                raise UnreadableError("a pair, no interval")
            return (Piece(low, high, reading.brackets[0] == "[", reading.brackets[1] == "]"),)
        if not reading.brackets and reading.items and all(isinstance(item.value, Relation) for item in reading.items):
            if len({name for item in reading.items for name in _unknowns(item.value)}) > 1:
                raise UnreadableError("more than one unknown")
            whole: RealSet = ()
            for item in reading.items:
                whole = combined(whole, real_set(item.value), "union")
            return whole
    if isinstance(reading, Relation):
        return _solved(reading)
    raise UnreadableError("no set")


def _unknowns(reading: Reading) -> set[str]:
    sides = reading.sides if isinstance(reading, Relation) else ()
    return {name for side in sides for name in symbols(parse(side))}


def _end(reading: Reading) -> Any:
    if not isinstance(reading, Scalar) or reading.tree is None:
        raise UnreadableError("no end")
    tree, sign = reading.tree, 1
    while tree.kind in ("negate", "group"):
        sign, tree = (-sign if tree.kind == "negate" else sign), tree.parts[0]
    if tree.kind == "constant" and tree.name == "infinity":
        return sign * mpmath.inf
    return sign * real_value(tree)


def _solved(relation: Relation) -> RealSet:
    """The solutions of inequalities between numbers and one unknown: ``0 < x <= 5``, ``-x > 1``, ``0 < f(x) < 1``."""
    whole = EVERYTHING
    unknown: str | None = None
    for place, operator in enumerate(relation.operators):
        left, right = (parse(side) for side in relation.sides[place : place + 2])
        names = symbols(left) | symbols(right)
        if len(names) != 1 or (unknown is not None and names != {unknown}) or operator not in FLIPPED:
            raise UnreadableError("no single unknown")
        unknown = next(iter(names))
        whole = combined(whole, _half_line(left, right, operator, unknown), "intersection")
    return whole


def _within(end: Any, operator: str) -> RealSet:
    """``|x|`` against a number."""
    if end < 0 or operator not in ("<", "le", ">", "ge"):
        raise UnreadableError("no distance")
    if operator in ("<", "le"):
        return (Piece(-end, end, operator == "le", operator == "le"),)
    return (Piece(-mpmath.inf, -end, False, operator == "ge"), Piece(end, mpmath.inf, operator == "ge", False))


def _half_line(left: Node, right: Node, operator: str, unknown: str) -> RealSet:
    kind = "call" if "(" in unknown else "symbol"
    for side, other, turned in ((left, right, operator), (right, left, FLIPPED[operator])):
        sign = 1
        while side.kind in ("negate", "group"):
            sign, side = (-sign if side.kind == "negate" else sign), side.parts[0]
        if side.kind == "function" and side.name == "abs" and side.parts[0].kind == "symbol" and not symbols(other):
            return _within(_end(Scalar("", other)), turned)
        if side.kind == kind and side.name == unknown and not symbols(other):
            end = sign * _end(Scalar("", other))
            turned = turned if sign > 0 else FLIPPED[turned]
            if turned == "=":
                return (point(end),)
            if turned == "ne":
                return combined(EVERYTHING, (point(end),), "difference")
            if turned in ("<", "le"):
                return (Piece(-mpmath.inf, end, False, turned == "le"),)
            return (Piece(end, mpmath.inf, turned == "ge", False),)
    raise UnreadableError("not solved here")
