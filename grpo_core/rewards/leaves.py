r"""The leaves of an expression: numbers, symbols with subscripts and primes, values of unknown functions."""

from fractions import Fraction

from grpo_core.rewards.tokens import Node, Token, TooLargeError, UnreadableError

_CALLED = frozenset({"f", "g", "h", "F", "G", "H", r"\phi", r"\Phi", r"\psi", r"\Psi", r"\varphi"})


class LeafReader:
    """A place in a list of tokens; each method reads from there and leaves ``at`` behind what it read."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead].text if self.at + ahead < len(self.tokens) else ""

    def peek_kind(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead].kind if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        text = self.peek()
        if not text or (expected and text != expected):
            raise UnreadableError(f"expected {expected or 'more'}")
        self.at += 1
        return text

    def number(self, based: bool = True) -> Node:
        token = self.tokens[self.at]
        self.at += 1
        digits = token.text.replace(",", "").rstrip(".")
        whole, point, part = digits.partition(".")
        value = Fraction(digits)
        power = int(token.exponent[1:] or 0) if token.exponent else 0
        if abs(power) > 5_000:
            raise TooLargeError("too large an exponent")
        significant = len((whole + part).lstrip("0"))
        if (
            based and self.peek() == "_" and not point and not token.exponent
        ):  # a number in another base is not evaluated
            based_number = self.subscripted(Node("symbol", name=digits.lstrip("0") or "0"))
            if not based_number.name.endswith("_10"):
                return based_number
        return Node(
            "number",
            value=value * Fraction(10) ** power if power else value,
            places=len(part) - power if point else None,
            digits=significant,
        )

    def named(self, name: str) -> Node:
        if name == "e":
            return Node("constant", name="e")
        if name == "i" and self.peek() != "_":
            return Node("constant", name="i")
        symbol = self.subscripted(Node("symbol", name=name))
        while self.peek() == "'" or (self.peek() == "^" and self.prime_follows()):
            symbol = Node("symbol", name=symbol.name + "'")
        if symbol.name.split("_")[0].rstrip("'") in _CALLED and self.peek() == "(":
            return self.call(symbol.name)
        return symbol

    def prime_follows(self) -> bool:
        r"""Steps over ``^\prime`` or ``^{\prime}``, to the one place before what follows."""
        if self.peek(1) == r"\prime":
            self.at += 2
            return True
        if self.peek(1) == "{" and self.peek(2) == r"\prime" and self.peek(3) == "}":
            self.at += 4
            return True
        return False

    def subscripted(self, symbol: Node) -> Node:
        if self.peek() == "'":
            self.at += 1
            symbol = Node("symbol", name=symbol.name + "'")
        if self.peek() != "_":
            return symbol
        self.at += 1
        if self.peek() != "{":
            return Node("symbol", name=f"{symbol.name}_{self.take()}")
        self.at += 1
        inside: list[str] = []
        open_braces = 1
        while open_braces:
            text = self.take()
            open_braces += (text == "{") - (text == "}")
            inside.append(text)
        return Node("symbol", name=f"{symbol.name}_{''.join(inside[:-1])}")

    def call(self, name: str) -> Node:
        """A value of an unknown function, named by its arguments as they are written."""
        start = self.at
        self.take("(")
        open_brackets = 1
        while open_brackets:
            text = self.take()
            open_brackets += (text == "(") - (text == ")")
        return Node("call", name=name + "".join(token.text for token in self.tokens[start : self.at]))
