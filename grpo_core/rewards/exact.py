"""The value of an expression tree as a fraction, within a budget of work."""

import math
from dataclasses import replace
from fractions import Fraction

from grpo_core.rewards.tokens import Node, TooLargeError

_MAX_BITS = 150_000  # of one exact number: 2006! has 19,000
_MAX_WORK = 20_000_000  # bits touched by one exact evaluation


class InexactError(Exception):
    """The value is no fraction, or has symbols."""


class UndefinedError(Exception):
    """There is no value here: a division by zero, an infinity, a pole."""


def exact(tree: Node) -> Fraction:
    """The value as a fraction.

    Raises:
        InexactError: it is irrational, or has symbols.
        UndefinedError: it divides by zero.
        TooLargeError: it would take too much work.
    """
    return _Exact().value(tree)


class _Exact:
    def __init__(self) -> None:
        self.work = 0

    def counted(self, value: Fraction) -> Fraction:
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        self.work += bits
        if bits > _MAX_BITS or self.work > _MAX_WORK:
            raise TooLargeError("too large a number")
        return value

    def value(self, node: Node) -> Fraction:
        match node.kind:
            case "number":
                return node.value
            case "group" | "degrees":
                return self.value(node.parts[0])
            case "negate":
                return -self.value(node.parts[0])
            case "inverse":
                below = self.value(node.parts[0])
                if not below:
                    raise UndefinedError("division by zero")
                return 1 / below
            case "add":
                total = Fraction(0)
                for part in node.parts:
                    total = self.counted(total + self.value(part))
                return total
            case "multiply":
                total = Fraction(1)
                for part in node.parts:
                    total = self.counted(total * self.value(part))
                return total
            case "power":
                return self.counted(self.power(self.value(node.parts[0]), self.value(node.parts[1])))
            case "factorial":
                return self.counted(Fraction(_factorial(self.whole(node.parts[0]))))
            case "mod":
                return self.modulo(*node.parts)
            case "root":
                return _root(self.value(node.parts[0]), self.whole(node.parts[1]))
            case "function":
                return self.function(node)
            case "sum" | "prod":
                return self.repeated(node)
        raise InexactError(node.kind)

    def repeated(self, node: Node) -> Fraction:
        low, high = self.whole(node.parts[0]), self.whole(node.parts[1])
        if high - low > 10_000:
            raise TooLargeError("too long a sum")
        total = Fraction(0 if node.kind == "sum" else 1)
        for place in range(low, high + 1):
            term = self.value(_replaced(node.parts[2], node.name, place))
            total = self.counted(total + term if node.kind == "sum" else total * term)
        return total

    def whole(self, node: Node) -> int:
        value = self.value(node)
        if value.denominator != 1:
            raise InexactError("no whole number")
        return value.numerator

    def power(self, base: Fraction, exponent: Fraction) -> Fraction:
        if exponent.denominator != 1:
            if base < 0 or exponent.denominator > 64:
                raise InexactError("a root")
            return self.power(_root(base, exponent.denominator), Fraction(exponent.numerator))
        if not base:
            if exponent < 0:
                raise UndefinedError("division by zero")
            return Fraction(1 if not exponent else 0)
        if abs(base) == 1:
            return base if exponent.numerator % 2 else Fraction(1)
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if size * abs(exponent) > _MAX_BITS:
            raise TooLargeError("too large a power")
        return Fraction(base**exponent.numerator)

    def modulo(self, left: Node, right: Node) -> Fraction:
        modulus = self.value(right)
        if modulus <= 0:
            raise UndefinedError("no modulus")
        while left.kind == "group":
            left = left.parts[0]
        if left.kind == "power" and modulus.denominator == 1:
            base, exponent = self.value(left.parts[0]), self.value(left.parts[1])
            if base.denominator == exponent.denominator == 1 and exponent >= 0:
                return Fraction(pow(base.numerator, exponent.numerator, modulus.numerator))
        return self.value(left) % modulus

    def function(self, node: Node) -> Fraction:
        match node.name:
            case "sqrt":
                return _root(self.value(node.parts[0]), 2)
            case "abs":
                return abs(self.value(node.parts[0]))
            case "floor":
                return Fraction(math.floor(self.value(node.parts[0])))
            case "ceil":
                return Fraction(math.ceil(self.value(node.parts[0])))
            case "binom":
                top, below = (self.whole(part) for part in node.parts)
                if not 0 <= below <= top or min(below, top - below) > 10_000:
                    raise InexactError("a binomial of its own kind")
                return self.counted(Fraction(math.comb(top, below)))
            case "gcd":
                return Fraction(math.gcd(*map(self.whole, node.parts)))
            case "lcm":
                return Fraction(math.lcm(*map(self.whole, node.parts)))
            case "max":
                return max(map(self.value, node.parts))
            case "min":
                return min(map(self.value, node.parts))
        raise InexactError(node.name)


def _replaced(node: Node, name: str, value: int) -> Node:
    if node.kind == "symbol" and node.name == name:
        return Node("number", value=Fraction(value))
    if not node.parts:
        return node
    return replace(node, parts=tuple(_replaced(part, name, value) for part in node.parts))


def _factorial(value: int) -> int:
    if value < 0:
        raise UndefinedError("a factorial below zero")
    if value > 12_000:
        raise TooLargeError("too large a factorial")
    return math.factorial(value)


def _root(value: Fraction, index: int) -> Fraction:
    """The exact real root, where it is a fraction."""
    if index < 1 or index > 64:
        raise InexactError("a root of its own kind")
    if value < 0:
        if index % 2 == 0:
            raise InexactError("imaginary")
        return -_root(-value, index)
    roots = []
    for part in (value.numerator, value.denominator):
        root = math.isqrt(part) if index == 2 else _whole_root(part, index)
        if root**index != part:
            raise InexactError("irrational")
        roots.append(root)
    return Fraction(*roots)


def _whole_root(value: int, index: int) -> int:
    low, high = 0, 1 << (value.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**index <= value:
            low = middle
        else:
            high = middle - 1
    return low
