r"""Values of expression trees: exact fractions where there are any, else many digits, always within a budget.

Two trees are told apart by value. Constants are compared exactly, or at 60 and then 120 digits: a true zero of their
difference shrinks with the precision, a tiny difference does not, so neither ``1/2004!`` and ``1/2006!`` nor
``e^{\pi\sqrt{163}}`` and the whole number beside it are ever equal. Expressions with symbols are compared at fixed
points, some positive only, some of mixed sign: two different analytic expressions agree at none of them but by a
miracle. Where both are real at some point, only such points count, so ``\sqrt{1/n}`` is ``1/\sqrt{n}`` but
``\sqrt{x^2}`` is not ``x``.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath

from grpo_core.rewards.exact import InexactError, UndefinedError, exact
from grpo_core.rewards.expression import symbols
from grpo_core.rewards.tokens import Node, TooLargeError, UnreadableError

_MAX_NODES = 3_000  # for evaluation at points
_MAX_LOG = 1e7  # natural logarithm of the largest size of an inexact value
_DIGITS = 60
_MAX_DIGITS = 2_500
_AGREED = mpmath.mpf(10) ** -30
_NONE = mpmath.mpf(10) ** -40
_POINTS = 8
_TRIGONOMETRIC = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})


def same_value(first: Node, second: Node) -> bool | None:
    """Whether two trees have one value; None where that cannot be told (both have no value, or one too large).

    Raises:
        TooLargeError: both are too large.
    """
    names = sorted(symbols(first) | symbols(second))
    if not names:
        equal = _same_constant(first, second)
        unsure = equal is False and any(map(_is_endless, (first, second)))
        return None if unsure else equal
    _limited(first, second)
    extra = _extra_digits(first, second)
    agreed, none = _AGREED * mpmath.mpf(10) ** -extra, _NONE * mpmath.mpf(10) ** -extra
    real: list[bool] = []
    other: list[bool] = []
    for point in range(_POINTS):
        values = _point(names, point)
        try:
            with mpmath.workdps(_DIGITS + extra):
                one, two = _numeric(first, values), _numeric(second, values)
                close = abs(one - two) <= max(agreed * max(abs(one), abs(two)), none)
                (real if _is_real(one) and _is_real(two) else other).append(bool(close))
        except (UndefinedError, TooLargeError):
            continue
    seen = real if len(real) >= 2 else real + other
    if not all(seen) and has_unevaluated(first) != has_unevaluated(second):
        return None
    return all(seen) if len(seen) >= 2 else None


def ratio(first: Node, second: Node) -> Fraction | mpmath.mpf | None:
    """The constant that ``first`` is ``second`` times, as a real number other than zero; None where there is none."""
    names = sorted(symbols(first) | symbols(second))
    _limited(first, second)
    found: list[Any] = []
    for point in range(_POINTS):
        try:
            with mpmath.workdps(_DIGITS):
                one, two = (_numeric(tree, _point(names, point)) for tree in (first, second))
                if abs(two) > _NONE and abs(one) > _NONE:
                    found.append(one / two)
        except (UndefinedError, TooLargeError):
            continue
    if len(found) < (3 if names else 1):
        return None
    steady = all(abs(value - found[0]) <= _AGREED * abs(found[0]) for value in found) and _is_real(found[0])
    return mpmath.re(found[0]) if steady else None


def real_value(tree: Node) -> Any:
    """A constant as a real number of 60 digits.

    Raises:
        InexactError: it has symbols.
        UndefinedError: it has no value, or is not real.
    """
    if symbols(tree):
        raise InexactError("symbols")
    _limited(tree)
    with mpmath.workdps(_DIGITS):
        value = _numeric(tree, {})
    if not _is_real(value):
        raise UndefinedError("not real")
    return mpmath.re(value)


def _limited(*trees: Node) -> None:
    waiting = list(trees)
    count = 0
    while waiting:
        count += 1
        waiting.extend(waiting.pop().parts)
        if count > _MAX_NODES:
            raise TooLargeError("too long an expression")


def _same_constant(first: Node, second: Node) -> bool | None:
    values: list[Fraction | None] = []
    large = undefined = 0
    for tree in (first, second):
        try:
            values.append(exact(tree))
        except InexactError:
            values.append(None)
        except UndefinedError:
            undefined += 1
        except TooLargeError:
            large += 1
    if large == 2:
        raise TooLargeError("both are too large")
    if large or undefined:
        return undefined == 2 and first == second
    if values[0] is not None and values[1] is not None:
        return values[0] == values[1]
    _limited(first, second)
    differences: list[Any] = []
    base = _DIGITS + _extra_digits(first, second)
    try:
        for digits in (base, 2 * base):
            with mpmath.workdps(digits):
                one, two = _numeric(first, {}), _numeric(second, {})
                differences.append(abs(one - two))
                if differences[0] > _AGREED * max(abs(one), abs(two)):
                    return False
    except UndefinedError:
        return first == second
    except TooLargeError:
        return False
    return bool(differences[1] <= differences[0] * _AGREED or (not differences[0] and differences[1] < _NONE))


def _extra_digits(*trees: Node) -> int:
    r"""Digits beyond the usual that it takes to see the smallest part of a sum: 200 for ``\sqrt{2} + 10^{-200}``."""
    digits = 0.0
    waiting = list(trees)
    while waiting:
        node = waiting.pop()
        waiting.extend(node.parts)
        if node.kind == "number":
            digits += max(0, max(node.value.numerator.bit_length(), node.value.denominator.bit_length()) - 24) * 0.302
        elif node.kind in ("power", "factorial"):
            try:
                sizes: list[Fraction] = [exact(part) for part in node.parts]
            except (InexactError, UndefinedError, TooLargeError):
                continue
            if node.kind == "factorial":
                digits += 4.0 * min(abs(int(sizes[0])), 10_000)
            else:
                bits = max(sizes[0].numerator.bit_length(), sizes[0].denominator.bit_length())
                digits += 0.302 * min(abs(int(sizes[1])), 100_000) * bits
    return min(int(digits), _MAX_DIGITS)


def _point(names: list[str], point: int) -> dict[str, Any]:
    """Fixed, unround values for the symbols: points 0 to 2 positive, 3 to 5 of mixed sign, 6 and 7 large."""
    values: dict[str, Any] = {}
    for place, name in enumerate(names):
        step = (place * 7 + point * 11 + 3) % 29
        value = Fraction(1_000_003 + 76_543 * step + 1_237 * place, 1_299_709)
        if point >= 6:
            value = 3 + value * 5
        elif point >= 3 and (place + point) % 2:
            value = -value
        values[name] = mpmath.mpf(value.numerator) / value.denominator
    return values


def _is_real(value: Any) -> bool:
    return not isinstance(value, mpmath.mpc) or abs(value.imag) <= _AGREED * max(abs(value.real), _AGREED)


def _numeric(node: Node, values: Mapping[str, Any], angle: bool = False) -> Any:
    """The value in the current precision of mpmath; ``angle``: inside a trigonometric function, where degrees count."""
    match node.kind:
        case "number":
            return mpmath.mpf(node.value.numerator) / node.value.denominator
        case "symbol" | "call":
            return values[node.name]
        case "constant":
            if node.name == "infinity":
                raise UndefinedError("infinity")
            return {"e": mpmath.e, "pi": mpmath.pi, "i": mpmath.mpc(0, 1)}[node.name] * mpmath.mpf(1)
        case "group":
            return _numeric(node.parts[0], values, angle)
        case "degrees":
            return _numeric(node.parts[0], values) * (mpmath.pi / 180 if angle else 1)
        case "function":
            inside = angle or node.name in _TRIGONOMETRIC
            return _function(node.name, [_numeric(part, values, inside) for part in node.parts])
        case "sum" | "prod":
            return _unevaluated(node, values)
    parts = [_numeric(part, values, angle) for part in node.parts]
    match node.kind:
        case "add":
            return mpmath.fsum(parts)
        case "multiply":
            return _sized(mpmath.fprod(parts))
        case "negate":
            return -parts[0]
        case "inverse":
            if not parts[0]:
                raise UndefinedError("division by zero")
            return 1 / parts[0]
        case "power":
            return _power(parts[0], parts[1])
        case "root":
            if not parts[1]:
                raise UndefinedError("no root")
            if _is_real(parts[0]) and mpmath.re(parts[0]) < 0 and parts[1] in (3, 5, 7, 9):
                return -_power(-parts[0], 1 / parts[1])
            return _power(parts[0], 1 / parts[1])
        case "factorial":
            return _gamma(parts[0] + 1)
        case "mod":
            if not parts[1] or not (_is_real(parts[0]) and _is_real(parts[1])):
                raise UndefinedError("no remainder")
            return mpmath.fmod(mpmath.re(parts[0]), mpmath.re(parts[1]))
    raise UndefinedError(node.kind)


def _unevaluated(node: Node, values: Mapping[str, Any]) -> Any:
    """A number that stands for a sum of unknown length: the same for equal bounds and terms, another for others."""
    inside = {**values, node.name: mpmath.mpf(1_618_033) / 1_299_709}
    low, high, term = (_numeric(part, inside) for part in node.parts[:3])
    weights = (
        (mpmath.sqrt(2), mpmath.sqrt(3), mpmath.sqrt(5))
        if node.kind == "sum"
        else (mpmath.sqrt(7), mpmath.e, mpmath.sqrt(11))
    )
    return low * weights[0] + high * weights[1] + term * weights[2]


def has_unevaluated(tree: Node) -> bool:
    """Whether a sum or product is in it: then only equality is certain."""
    return tree.kind in ("sum", "prod") or any(map(has_unevaluated, tree.parts))


def _is_endless(tree: Node) -> bool:
    """Whether a sum with an infinite bound is in it."""
    if tree.kind in ("sum", "prod"):
        return any(part.kind == "constant" and part.name == "infinity" for part in tree.parts[:2])
    return any(map(_is_endless, tree.parts))


def _sized(value: Any) -> Any:
    if abs(value) and not -_MAX_LOG < mpmath.log(abs(value)) < _MAX_LOG:
        raise TooLargeError("too large a value")
    return value


def _power(base: Any, exponent: Any) -> Any:
    if not base:
        if mpmath.re(exponent) <= 0 and exponent:
            raise UndefinedError("division by zero")
        return mpmath.mpf(0 if exponent else 1)
    if abs(exponent) * (abs(mpmath.log(abs(base))) + 4) > _MAX_LOG:
        raise TooLargeError("too large a power")
    return base**exponent


def _gamma(value: Any) -> Any:
    if abs(value) > 100_000:
        raise TooLargeError("too large a factorial")
    if _is_real(value) and mpmath.re(value) <= 0 and mpmath.isint(mpmath.re(value)):
        raise UndefinedError("a pole")
    return mpmath.gamma(value)


def _function(name: str, parts: list[Any]) -> Any:
    value = parts[0]
    if abs(value) > 1e20 and name not in ("sqrt", "abs", "log", "ln", "lg", "max", "min", "floor", "ceil"):
        raise TooLargeError("too large an argument")
    try:
        match name:
            case "sqrt" | "sin" | "cos" | "tan" | "cot" | "sec" | "csc" | "sinh" | "cosh" | "tanh":
                return getattr(mpmath, name)(value)
            case "exp":
                return _power(mpmath.e, value)
            case "arcsin" | "arccos" | "arctan":
                return getattr(mpmath, "a" + name.removeprefix("arc"))(value)
            case "ln":
                return _logarithm(value)
            case "log" | "lg":
                return _logarithm(value) / (_logarithm(parts[1]) if len(parts) > 1 else mpmath.log(10))
            case "abs":
                return abs(value)
            case "floor" | "ceil":
                return getattr(mpmath, name)(value)
            case "max" | "min":
                if not all(map(_is_real, parts)):
                    raise UndefinedError("no order")
                return (max if name == "max" else min)(map(mpmath.re, parts))
            case "binom":
                return _gamma(parts[0] + 1) / (_gamma(parts[1] + 1) * _gamma(parts[0] - parts[1] + 1))
    except (ZeroDivisionError, ValueError, OverflowError) as error:
        raise UndefinedError(str(error)) from error
    raise UnreadableError(name)


def _logarithm(value: Any) -> Any:
    if not value:
        raise UndefinedError("the logarithm of zero")
    return mpmath.log(value)
