"""When a decimal stands for a value that it cannot write out."""

from fractions import Fraction

import mpmath

from grpo_core.rewards.evaluate import real_value
from grpo_core.rewards.exact import InexactError, UndefinedError, exact
from grpo_core.rewards.tokens import Node, TooLargeError


def literal_of(tree: Node) -> Node | None:
    r"""A decimal literal, also with a sign or a power of ten behind it, as one number with its places."""
    if tree.kind == "group":
        return literal_of(tree.parts[0])
    if tree.kind == "negate":
        inner = literal_of(tree.parts[0])
        return None if inner is None else Node("number", value=-inner.value, places=inner.places, digits=inner.digits)
    if tree.kind == "number" and tree.places is not None:
        return tree
    if (
        tree.kind == "multiply"
        and len(tree.parts) == 2
        and tree.parts[0].places is not None
        and tree.parts[1].kind == "power"
    ):
        base, power = tree.parts[1].parts
        try:
            if exact(base) == 10 and exact(power).denominator == 1 and abs(exact(power)) < 1000:
                mantissa, shift = tree.parts[0], int(exact(power))
                assert mantissa.places is not None
                value = mantissa.value * Fraction(10) ** shift
                return Node("number", value=value, places=mantissa.places - shift, digits=mantissa.digits)
        except (InexactError, UndefinedError):
            return None
    return None


def stands_for(literal: Node, other: Node) -> bool:
    """Whether ``other``, which its places cannot write out, lies within one unit of the literal's last place."""
    assert literal.places is not None
    unit = Fraction(10) ** -literal.places
    try:
        value = exact(other)
        return (value / unit).denominator != 1 and abs(value - literal.value) <= unit
    except InexactError:
        pass
    except (UndefinedError, TooLargeError):
        return False
    try:
        approximate = real_value(other)
    except (InexactError, UndefinedError, TooLargeError):
        return False
    with mpmath.workdps(60):
        written, step = (mpmath.mpf(number.numerator) / number.denominator for number in (literal.value, unit))
        return bool(abs(approximate - written) <= step)
