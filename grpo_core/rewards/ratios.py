"""Ratios and clock times: ``3:4`` is ``6:8`` and ``3/4``; ``3:30`` may be ``3:30 p.m.``, ``20:34`` is ``8:34 p.m.``"""

from collections.abc import Iterable

from grpo_core.rewards.evaluate import same_value
from grpo_core.rewards.kinds import Ratio, Reading, Scalar
from grpo_core.rewards.tokens import Node


def same_ratios(gold: Reading, answer: Reading) -> bool | None:
    """Whether a ratio or time is another, or the quotient that a ratio is; one of both is a ``Ratio``."""
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        if gold.seconds is not None and answer.seconds is not None:
            return gold.seconds == answer.seconds or _same_clock_face(gold, answer)
        if not gold.parts or len(gold.parts) != len(answer.parts):
            return False
        trees = [[part.tree for part in side.parts if part.tree is not None] for side in (gold, answer)]
        return all_of(same_value(_product(a, d), _product(b, c)) for (a, b), (c, d) in _neighbours(trees))
    pair, other = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
    if isinstance(pair, Ratio) and isinstance(other, Scalar) and len(pair.parts) == 2 and other.tree is not None:
        top, bottom = (part.tree for part in pair.parts)
        if top is not None and bottom is not None:
            return same_value(Node("multiply", (top, Node("inverse", (bottom,)))), other.tree)
    return False


def _same_clock_face(gold: Ratio, answer: Ratio) -> bool:
    """Whether one time leaves open which half of the day the other names: ``3:30`` and ``3:30 p.m.``"""
    if bool(gold.parts) == bool(answer.parts) or gold.seconds is None or answer.seconds is None:
        return False
    bare = gold.seconds if gold.parts else answer.seconds
    return bare < 13 * 3600 and (gold.seconds - answer.seconds) % (12 * 3600) == 0


def _neighbours(trees: list[list[Node]]) -> list[tuple[tuple[Node, Node], tuple[Node, Node]]]:
    gold, answer = trees
    return [((gold[n], gold[n + 1]), (answer[n], answer[n + 1])) for n in range(len(gold) - 1)]


def _product(first: Node, second: Node) -> Node:
    return Node("multiply", (first, second))


def all_of(outcomes: Iterable[bool | None]) -> bool | None:
    """False where one outcome is, else None where one cannot be told, else True."""
    unsure = False
    for outcome in outcomes:
        if outcome is False:
            return False
        unsure = unsure or outcome is None
    return None if unsure else True
