r"""A small reader of scalar mathematics: LaTeX or plain text to a tree, in one bounded pass, evaluating nothing.

It knows what answers are made of: numbers, symbols, arithmetic, fractions, roots, powers, functions, sums. Anything
else (integrals, matrices, words) raises ``UnreadableError``, and a caller asks math-verify instead. ``3 1/2`` and
``3\frac{1}{2}`` are mixed numbers; ``1/2x`` is half of x; ``f(x)``, ``g``, ``h`` and their like are functions when a
parenthesis follows; ``\log`` has base 10.
"""

from fractions import Fraction

from grpo_core.rewards.leaves import LeafReader
from grpo_core.rewards.splitting import BrokenError
from grpo_core.rewards.tokens import (
    FUNCTIONS,
    SYMBOL_COMMANDS,
    WORDS,
    Node,
    TooLargeError,
    UnreadableError,
    repeating,
    tokenised,
)

MAX_DEPTH = 40

_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_OPENERS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_TIMES = frozenset({"*", r"\cdot", r"\times", r"\ast"})
_DIVIDED = frozenset({"/", r"\div", ":"})


def parse(text: str) -> Node:
    """The tree of ``text``.

    Raises:
        UnreadableError: for what it does not know.
        TooLargeError: for what is nested too deeply, or too long.
    """
    tokens = tokenised(text)
    reader = _Reader(tokens)
    tree = reader.expression()
    if reader.at < len(tokens):
        raise UnreadableError(f"left over: {tokens[reader.at].text[:20]}")
    return tree


def symbols(tree: Node) -> set[str]:
    """The names of free symbols and of unknown function values in ``tree``; a sum's own variable is not free."""
    if tree.kind in ("sum", "prod"):
        low, high, term, variable = tree.parts
        return symbols(low) | symbols(high) | (symbols(term) - {variable.name})
    found = {tree.name} if tree.kind in ("symbol", "call") else set()
    return found.union(*map(symbols, tree.parts))


class _Reader(LeafReader):
    """Recursive descent over tokens; each method reads one level of precedence and leaves ``at`` behind it."""

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLargeError("nested too deeply")
        terms = [self.signed_term()]
        while self.peek() in ("+", "-"):
            terms.append(self.signed_term())
        total = terms[0] if len(terms) == 1 else Node("add", tuple(terms))
        if self.peek() in (r"\bmod", r"\mod", "mod"):
            self.at += 1
            total = Node("mod", (total, self.signed_term()))
        self.depth -= 1
        return total

    def signed_term(self) -> Node:
        sign = 1
        for place in range(3):
            if self.peek() not in ("+", "-"):
                break
            if place == 2:
                raise TooLargeError("a heap of signs")
            sign = -sign if self.take() == "-" else sign
        term = self.term()
        return term if sign == 1 else Node("negate", (term,))

    def term(self) -> Node:
        factors = [self.factor()]
        while True:
            operator = self.peek()
            if operator in _TIMES:
                self.at += 1
                factors.append(self.signed_factor())
            elif operator in _DIVIDED:
                self.at += 1
                factors.append(Node("inverse", (self.signed_factor(),)))
            elif self.starts_factor():
                factors.append(self.factor())
            else:
                break
        return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))

    def signed_factor(self) -> Node:
        if self.peek() in ("-", "+"):
            negative = self.take() == "-"
            factor = self.factor()
            return Node("negate", (factor,)) if negative else factor
        return self.factor()

    def starts_factor(self) -> bool:
        """Whether a factor follows without a sign between: ``2x``, ``2^6 3^5``, but never ``1 2``."""
        kind, text = self.peek_kind(), self.peek()
        if kind == "number" or kind == "repeat":
            return (self.tokens[self.at - 1].kind == "operator" and self.tokens[self.at - 1].text in ")}") or (
                self.at >= 2 and self.tokens[self.at - 2].text in ("^", "**")
            )
        if kind == "word":
            return text != "mod"
        if kind == "command":
            return text in _OPENERS or text in SYMBOL_COMMANDS or text[1:] in FUNCTIONS or text in _ATOMS
        return text in ("(", "{", "[") or (text == "|" and not self.bars)

    def factor(self) -> Node:
        start = self.at
        base = self.atom()
        if base.kind == "number" and base.places is None and start == self.at - 1:
            mixed = self.mixed(base)
            if mixed is not None:
                return mixed
        return self.raised(base)

    def mixed(self, whole: Node) -> Node | None:
        r"""``3\frac{1}{2}`` or ``3 1/2``: a whole number, then a proper fraction of whole numbers."""
        before = self.at
        if self.peek() == r"\frac":
            fraction = self.atom()
        elif self.peek_kind() == "number" and self.tokens[self.at].spaced and self.peek(1) == "/":
            top = self.atom()
            self.take("/")
            if self.peek_kind() != "number":
                self.at = before
                return None
            fraction = Node("multiply", (top, Node("inverse", (self.atom(),))))
        else:
            return None
        top, bottom = fraction.parts[0], fraction.parts[1].parts[0]
        proper = (
            all(part.kind == "number" and part.places is None for part in (top, bottom)) and top.value < bottom.value
        )
        if not proper or top.value <= 0:
            if self.tokens[before].kind == "number":
                raise BrokenError("a whole number beside a quotient")
            self.at = before
            return None
        return Node("add", (whole, fraction))

    def raised(self, base: Node) -> Node:
        """What may follow an atom: powers, factorials, degree and percent signs."""
        while True:
            text = self.peek()
            if text in ("^", "**"):
                self.at += 1
                if self.peek() == r"\circ" or (self.peek() == "{" and self.peek(1) == r"\circ" and self.peek(2) == "}"):
                    self.at += 1 if self.peek() == r"\circ" else 3
                    base = Node("degrees", (base,))
                    continue
                power = self.exponent()
                if self.peek() == "_" and base.kind == "symbol":  # v^2_0 is the square of v_0
                    base = self.subscripted(base)
                base = Node("power", (base, power))
            elif text == r"\circ":
                self.at += 1
                base = Node("degrees", (base,))
            elif text == "!":
                self.at += 1
                base = Node("factorial", (base,))
            elif text in ("%", r"\%"):
                self.at += 1
                base = Node("multiply", (base, Node("number", value=Fraction(1, 100))))
            else:
                return base

    def degrees_follow(self) -> bool:
        return self.peek() == "^" and r"\circ" in (self.peek(1), self.peek(2))

    def exponent(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLargeError("nested too deeply")
        if self.peek() == "-":
            self.at += 1
            power = Node("negate", (self.exponent(),))
        elif self.peek() in ("{", "("):
            power = self.atom()
        elif self.peek_kind() == "number":
            power = self.number(based=False)
        else:
            power = self.atom()
        if self.peek() == "**" or (self.peek() == "^" and not self.degrees_follow()):
            self.at += 1
            power = Node("power", (power, self.exponent()))
        self.depth -= 1
        return power

    def atom(self) -> Node:
        kind, text = self.peek_kind(), self.peek()
        if kind == "number":
            return self.number()
        if kind == "repeat":
            self.at += 1
            return Node("number", value=repeating(text))
        if text in _OPENERS:
            return self.group()
        if text == "|":
            return self.absolute()
        if kind == "word" and text not in WORDS:
            self.at += 1
            return self.named(text)
        name = text.lstrip("\\")
        if name in FUNCTIONS:
            self.at += 1
            return self.function(_ALIASES.get(name, name))
        if "\\" + name in SYMBOL_COMMANDS:
            self.at += 1
            return self.named("\\" + name)
        if kind in ("command", "word") and "\\" + name in _ATOMS:
            self.at += 1
            return self.special(name)
        raise UnreadableError(f"unknown: {text[:20]}")

    def group(self) -> Node:
        opener = self.take()
        inner = self.expression()
        if self.peek() == "," and opener != "{":
            raise UnreadableError("a list")
        self.take(_OPENERS[opener])
        if opener == r"\{":
            raise UnreadableError("a set")
        if opener in (r"\lfloor", r"\lceil"):
            return Node("function", (inner,), "floor" if opener == r"\lfloor" else "ceil")
        return Node("group", (inner,))

    def absolute(self) -> Node:
        self.take("|")
        self.bars += 1
        inner = self.expression()
        self.take("|")
        self.bars -= 1
        return Node("function", (inner,), "abs")

    def function(self, name: str) -> Node:
        power: Node | None = None
        base: Node | None = None
        while self.peek() in ("^", "_"):
            if self.take() == "^":
                power = self.exponent()
            else:
                base = self.exponent()
        if name in ("gcd", "lcm", "max", "min"):
            return Node("function", self.arguments(), name)
        parts = (self.argument(),) if base is None else (self.argument(), base)
        if power is not None and _is_minus_one(power) and "arc" + name in ("arcsin", "arccos", "arctan"):
            return Node("function", parts, "arc" + name)
        value = Node("function", parts, name)
        return value if power is None else Node("power", (value, power))

    def arguments(self) -> tuple[Node, ...]:
        opener = self.take()
        if opener not in ("(", "{", r"\{"):
            raise UnreadableError("arguments stand in brackets")
        parts = [self.expression()]
        while self.peek() == ",":
            self.at += 1
            parts.append(self.expression())
        self.take(_OPENERS[opener])
        return tuple(parts)

    def argument(self) -> Node:
        r"""One group, or the product up to the next sign or function: ``\sin 2x``, ``\sin b \cos a``."""
        if self.peek() in ("(", "{", "["):  # a power after the bracket is one of the function's value
            argument = self.atom()
            return self.raised(argument) if self.peek() == r"\circ" or self.degrees_follow() else argument
        factors = [self.factor()]
        while self.starts_factor() and self.peek().lstrip("\\") not in FUNCTIONS and self.peek() != "(":
            factors.append(self.factor())
        if self.peek() == "/" and self.peek_kind(1) == "number":
            self.at += 1
            factors.append(Node("inverse", (self.factor(),)))
        return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))

    def special(self, name: str) -> Node:
        match name:
            case "frac":
                top, bottom = self.two_arguments()
                return Node("multiply", (top, Node("inverse", (bottom,))))
            case "binom":
                return Node("function", self.two_arguments(), "binom")
            case "sqrt":
                index = None
                if self.peek() == "[":
                    self.at += 1
                    index = self.expression()
                    self.take("]")
                radicand = self.atom()
                return Node("function", (radicand,), "sqrt") if index is None else Node("root", (radicand, index))
            case "sum" | "prod":
                return self.repeated(name)
            case "pi":
                return Node("constant", name="pi")
            case "infty" | "infinity" | "inf":
                return Node("constant", name="infinity")
        raise UnreadableError(f"unknown: {name}")

    def repeated(self, name: str) -> Node:
        r"""``\sum_{k=1}^{n} …`` with the parts low, high, body; the body reaches to the next sign."""
        self.take("_")
        self.take("{")
        variable = self.subscripted(Node("symbol", name=self.take()))
        self.take("=")
        low = self.expression()
        self.take("}")
        self.take("^")
        high = self.exponent()
        factors = [self.factor()]
        while self.starts_factor() or self.peek() in _TIMES:
            if self.peek() in _TIMES:
                self.at += 1
            factors.append(self.factor())
        return Node(name, (low, high, Node("multiply", tuple(factors)), variable), variable.name)

    def two_arguments(self) -> tuple[Node, Node]:
        r"""``{a}{b}``, or LaTeX's short forms ``\frac12``, ``\frac1{72}``; of ``\frac125`` one digit is the top."""
        if self.peek_kind() == "number" and len(self.peek()) > 1 and self.peek().isdigit():
            digits = self.take()
            return Node("number", value=Fraction(int(digits[0]))), Node("number", value=Fraction(int(digits[1:])))
        return self.one_argument(), self.one_argument()

    def one_argument(self) -> Node:
        argument = self.atom()
        return argument.parts[0] if argument.kind == "group" else argument


_ATOMS = frozenset({r"\sum", r"\prod", r"\frac", r"\binom", r"\sqrt", r"\pi", r"\infty", r"\infinity", r"\inf"})


def _is_minus_one(power: Node) -> bool:
    while power.kind == "group":
        power = power.parts[0]
    return power.kind == "negate" and power.parts[0].value == 1
