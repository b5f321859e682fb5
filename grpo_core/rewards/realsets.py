r"""Sets of real numbers: points and intervals, their unions, intersections and differences, and whether two are one.

Ends are numbers of 60 digits (``evaluate.real_value``) or infinities; two ends nearer than one part in 10^30 are one.
"""

from dataclasses import dataclass
from typing import Any, Literal

import mpmath

_NEAR = mpmath.mpf(10) ** -30
_NOTHING = mpmath.mpf(10) ** -50

Operation = Literal["union", "intersection", "difference"]


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval from ``low`` to ``high``, each end in it or not; a point where both are one number."""

    low: Any
    high: Any
    low_in: bool
    high_in: bool


RealSet = tuple[Piece, ...]
"""Pieces in no order; they may overlap until ``combined`` has made them disjoint."""

EVERYTHING: RealSet = (Piece(-mpmath.inf, mpmath.inf, False, False),)


def point(value: Any) -> Piece:
    """The set of one number, as a piece."""
    return Piece(value, value, True, True)


def is_interval(piece: Piece) -> bool:
    """Whether the piece has any number in it."""
    return bool(piece.low < piece.high) or (_same(piece.low, piece.high) and piece.low_in and piece.high_in)


def combined(first: RealSet, second: RealSet, operation: Operation) -> RealSet:
    """The union, intersection or difference, as disjoint pieces in order."""
    ends: list[Any] = []
    for piece in (*first, *second):
        for end in (piece.low, piece.high):
            if not mpmath.isinf(end) and not any(_same(end, other) for other in ends):
                ends.append(end)
    ends.sort()
    atoms: list[Piece] = []  # -inf..e0, {e0}, e0..e1, {e1}, …: on each of them both sets are whole or absent
    low = -mpmath.inf
    for end in ends:
        atoms += [Piece(low, end, False, False), point(end)]
        low = end
    atoms.append(Piece(low, mpmath.inf, False, False))
    return _joined([atom for atom in atoms if _kept(_holds(first, atom), _holds(second, atom), operation)])


def same_set(first: RealSet, second: RealSet) -> bool:
    """Whether both hold the same numbers."""
    one, two = combined(first, (), "union"), combined(second, (), "union")
    return len(one) == len(two) and all(
        _same(left.low, right.low)
        and _same(left.high, right.high)
        and left.low_in == right.low_in
        and left.high_in == right.high_in
        for left, right in zip(one, two, strict=True)
    )


def _kept(in_first: bool, in_second: bool, operation: Operation) -> bool:
    match operation:
        case "union":
            return in_first or in_second
        case "intersection":
            return in_first and in_second
        case "difference":
            return in_first and not in_second


def _holds(pieces: RealSet, atom: Piece) -> bool:
    if _same(atom.low, atom.high):
        return any(
            (
                (piece.low < atom.low and atom.low < piece.high and not _same(piece.low, atom.low))
                and not _same(piece.high, atom.low)
            )
            or (_same(piece.low, atom.low) and piece.low_in)
            or (_same(piece.high, atom.low) and piece.high_in)
            for piece in pieces
            if is_interval(piece)
        )
    return any(
        (piece.low < atom.low or _same(piece.low, atom.low))
        and (piece.high > atom.high or _same(piece.high, atom.high))
        for piece in pieces
        if is_interval(piece) and not _same(piece.low, piece.high)
    )


def _joined(atoms: list[Piece]) -> RealSet:
    pieces: list[Piece] = []
    for atom in atoms:
        last = pieces[-1] if pieces else None
        if last is not None and _same(last.high, atom.low) and (last.high_in or atom.low_in):
            pieces[-1] = Piece(last.low, atom.high, last.low_in, atom.high_in)
        else:
            pieces.append(atom)
    return tuple(pieces)


def _same(first: Any, second: Any) -> bool:
    if mpmath.isinf(first) or mpmath.isinf(second):
        return bool(first == second)
    return bool(abs(first - second) <= max(_NEAR * max(abs(first), abs(second)), _NOTHING))
