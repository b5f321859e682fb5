"""Plain data as bytes, strictly: what is read back is of exact builtin types, whatever the bytes say.

A message is ``b"<bytes of text>\\n"``, the text and a blob. The text has one record a line, a letter and tokens each.
Mutable containers are made empty and filled later, so that shared and circular references survive, and no depth of
nesting makes the reader recurse.

Token: ``n`` None, ``t`` True, ``f`` False, ``e`` Ellipsis, ``i-1f`` int in hex, ``d0x1p+0`` float, ``s7,5`` str and
``b7,5`` bytes: 5 bytes from 7 on in the blob, ``@3`` slot 3, ``o3`` container 3 of the message that is answered,
``h3c`` object 3 of the sender (``c``: its kind), ``r3`` object 3 of the receiver.
Record: ``L D S A Q C O`` an empty list, dict, set, bytearray, deque, Counter or OrderedDict in the next slot;
``T Z X`` a tuple, frozenset or value of the standard library, made of tokens, in the next slot; ``=3`` the contents of
slot 3; ``<3`` the new contents of container 3 of the message that is answered; ``!`` the message itself, last.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, deque

TYPE_CHECKING = False  # importing typing would take a third of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class Malformed(Exception):
    """The bytes are no message: whoever sent them does not keep to the protocol."""


_MUTABLE: dict[str, type] = {
    "L": list, "D": dict, "S": set, "A": bytearray, "Q": deque, "C": Counter, "O": OrderedDict,
}  # fmt: skip
_LETTERS = {kind: letter for letter, kind in _MUTABLE.items()}
_BUILTIN = (int, float, str, bytes, list, dict, set, bytearray, tuple, frozenset, deque)
_VIEWS = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
_DEEPEST = 2_000  # tuples in tuples; the interpreter hashes them recursively and unguarded
_STANDARD = {"datetime": ("date", "time", "datetime", "timedelta"), "decimal": ("Decimal",), "fractions": ("Fraction",)}


def pack(value: object) -> bytes:
    """One message for ``value``.

    Raises:
        TypeError: for what is no plain data.
    """
    return Writer(_refuse).message(value)


def unpack(data: bytes) -> Any:
    """The plain value of one message.

    Raises:
        Malformed: for bytes that are none.
    """
    return Reader(_refuse).value(data)


def _refuse(value: object) -> Any:
    raise TypeError(f"{value!r:.60} is no plain data")


class Writer:
    """Writes one message; ``containers`` are its mutable containers, in the order in which a reader makes them.

    Args:
        export: gives the token of an object that is no plain data.
        answered: the containers of the message that this one answers; references to them stay references.
        as_object: whether a value of a class derived from a builtin one goes as an object, not as its contents.
    """

    def __init__(
        self,
        export: Callable[[Any], str],
        answered: Sequence[object] = (),
        as_object: Callable[[object], bool] = lambda value: False,
    ) -> None:
        self._export = export
        self._as_object = as_object
        self._answered = answered
        self._tokens = {id(container): f"o{index}" for index, container in enumerate(answered)}
        self._kept: list[object] = []  # an id stands for one object only while that lives
        self._lines: list[str] = []
        self._blob = bytearray()
        self._slots = 0
        self._unfilled: deque[tuple[str, Any]] = deque()
        self.containers: list[object] = []

    def message(self, value: object, changed: Sequence[int] = ()) -> bytes:
        """The bytes for ``value``, and for the contents of the ``changed`` ones among the answered containers."""
        root = self._token(value)
        self._unfilled.extend((f"<{index}", self._answered[index]) for index in changed)
        while self._unfilled:
            head, container = self._unfilled.popleft()
            self._record(head, self._contents(container))
        self._record("!", [root])
        text = "\n".join(self._lines).encode()
        return b"%d\n%b%b" % (len(text), text, bytes(self._blob))

    def _record(self, head: str, tokens: Sequence[str]) -> None:
        self._lines.append(f"{head} {' '.join(tokens)}" if tokens else head)

    def _contents(self, container: Any) -> list[str]:
        if isinstance(container, dict):
            pairs: Any = dict.items(container)
            if isinstance(container, OrderedDict):
                pairs = OrderedDict.items(container)  # in its own order, which dict.items does not know
            return [self._token(part) for pair in pairs for part in pair]
        if isinstance(container, bytearray):
            return [self._token(bytes(container))]
        kind = next(kind for kind in (list, set, deque) if isinstance(container, kind))
        return [self._token(item) for item in kind.__iter__(container)]

    def _token(self, value: Any) -> str:
        kind = type(value)
        if value is None:
            return "n"
        if kind is bool:
            return "t" if value else "f"
        if kind is int:
            return f"i{value:x}"
        if kind is float:
            return f"d{value.hex()}"
        known = self._tokens.get(id(value))
        if known is None:
            known = self._new(value, kind)
            self._tokens[id(value)] = known
            self._kept.append(value)
        return known

    def _new(self, value: Any, kind: type) -> str:
        if kind not in _BUILTIN and isinstance(value, _BUILTIN) and self._as_object(value):
            return self._export(value)
        if isinstance(value, str):
            return self._text("s", str.encode(value, "utf-8", "surrogatepass"))
        if isinstance(value, bytes):
            return self._text("b", value)
        if isinstance(value, int):
            return f"i{int.__format__(value, 'x')}"
        if isinstance(value, float):
            return f"d{float.hex(value)}"
        for base in (Counter, OrderedDict, list, dict, set, bytearray, deque):
            if isinstance(value, base):
                token = self._slot(_LETTERS[base], [])
                self.containers.append(value)
                self._unfilled.append((f"={token[1:]}", value))
                return token
        if isinstance(value, tuple):
            return self._slot("T", [self._token(item) for item in tuple.__iter__(value)])
        if isinstance(value, frozenset):
            return self._slot("Z", [self._token(item) for item in frozenset.__iter__(value)])
        if value is Ellipsis:
            return "e"
        parts = _taken_apart(value, kind)
        return self._export(value) if parts is None else self._slot("X", [self._token(part) for part in parts])

    def _text(self, letter: str, data: bytes) -> str:
        token = f"{letter}{len(self._blob)},{len(data)}"
        self._blob += data
        return token

    def _slot(self, head: str, tokens: Sequence[str]) -> str:
        self._record(head, tokens)
        self._slots += 1
        return f"@{self._slots - 1}"


def _taken_apart(value: Any, kind: type) -> tuple[Any, ...] | None:
    """A value of one of the standard library's plain types as its name and the arguments that make it."""
    if kind is range:
        return ("range", value.start, value.stop, value.step)
    if kind is complex:
        return ("complex", value.real, value.imag)
    for name, view in _VIEWS.items():
        if kind is view:
            return (name, tuple(value))
    names = _STANDARD.get(kind.__module__, ())
    if kind.__name__ not in names or getattr(sys.modules.get(kind.__module__), kind.__name__, None) is not kind:
        return None
    match kind.__name__:
        case "Decimal":
            return ("Decimal", str(value))
        case "Fraction":
            return ("Fraction", value.numerator, value.denominator)
        case "timedelta":
            return ("timedelta", value.days, value.seconds, value.microseconds)
    is_plain = getattr(value, "tzinfo", None) is None and not getattr(value, "fold", 0)
    return (kind.__name__, value.isoformat()) if is_plain else None


def _put_together(name: object, *parts: Any) -> Any:
    match name, parts:
        case "range", (int(), int(), int()):
            return range(*parts)
        case "complex", (float(), float()):
            return complex(*parts)
        case "keys", (tuple() as keys,):
            return dict.fromkeys(keys).keys()
        case "values", (tuple() as values,):
            return dict(enumerate(values)).values()
        case "items", (tuple() as items,):
            return dict(items).items()
        case (("date" | "time" | "datetime"), (str() as text,)):
            import datetime

            kinds: dict[str, Any] = {"date": datetime.date, "time": datetime.time, "datetime": datetime.datetime}
            return kinds[str(name)].fromisoformat(text)
        case "timedelta", (int(), int(), int()):
            import datetime

            return datetime.timedelta(*parts)
        case "Decimal", (str() as text,):
            import decimal

            return decimal.Decimal(text)
        case "Fraction", (int(), int()):
            import fractions

            return fractions.Fraction(*parts)
    raise Malformed("an unknown kind of value")


class Reader:
    """Reads one message; ``containers`` are its mutable containers, in the order of the writer's.

    Args:
        adopt: gives the object that a token of the kinds ``h`` and ``r`` stands for.
        answered: the containers of the message that this one answers; new contents are put into them in place.
    """

    def __init__(self, adopt: Callable[[str], Any], answered: Sequence[Any] = ()) -> None:
        self._adopt = adopt
        self._answered = answered
        self._slots: list[Any] = []
        self._depths: dict[int, int] = {}
        self._blob = b""
        self.containers: list[Any] = []

    def value(self, data: bytes) -> Any:
        """The value of one message.

        Raises:
            Malformed: for bytes that are none.
        """
        try:
            length, _, rest = data.partition(b"\n")
            text, self._blob = rest[: int(length)].decode("ascii"), rest[int(length) :]
            lines = text.split("\n")
            for line in lines[:-1]:
                self._take(line)
            head, token = lines[-1].split(" ")
            if head != "!":
                raise Malformed("the message has no end")
            return self._of(token)
        except Malformed:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, MemoryError) as error:
            raise Malformed(f"{type(error).__name__} in a message") from None

    def _take(self, line: str) -> None:
        head, *tokens = line.split(" ")
        if head in _MUTABLE and not tokens:
            made: Any = _MUTABLE[head]()
            self.containers.append(made)
            self._slots.append(made)
            return
        parts = [self._of(token) for token in tokens]
        if head in ("T", "Z", "X"):
            depth = 1 + max((self._depths.get(_index(token), 0) for token in tokens if token[0] == "@"), default=0)
            if depth > _DEEPEST:
                raise Malformed("too deep")
            self._depths[len(self._slots)] = depth
        if head == "T":
            self._slots.append(tuple(parts))
        elif head == "Z":
            self._slots.append(frozenset(parts))
        elif head == "X":
            self._slots.append(_put_together(*parts))
        elif head[0] == "=":
            _fill(self._slots[_index(head)], parts)
        elif head[0] == "<":
            _fill(self._answered[_index(head)], parts)
        else:
            raise Malformed("an unknown record")

    def _of(self, token: str) -> Any:
        letter = token[0]
        if letter == "i":
            return int(token[1:], 16)
        if letter == "@":
            return self._slots[_index(token)]
        if letter in "sb":
            start, _, size = token[1:].partition(",")
            if not (start.isdecimal() and size.isdecimal()) or int(start) + int(size) > len(self._blob):
                raise Malformed("a string beyond the end")
            data = self._blob[int(start) : int(start) + int(size)]
            return data.decode("utf-8", "surrogatepass") if letter == "s" else data
        if letter == "d":
            return float.fromhex(token[1:])
        if letter == "o":
            return self._answered[_index(token)]
        if letter in "hr":
            return self._adopt(token)
        return {"n": None, "t": True, "f": False, "e": Ellipsis}[token]


def _index(token: str) -> int:
    if not token[1:].isdecimal():
        raise Malformed("a reference without a number")
    return int(token[1:])


def _fill(container: Any, parts: list[Any]) -> None:
    """Gives a container these contents in place."""
    if isinstance(container, (list, deque)):
        container.clear()
        container.extend(parts)
    elif isinstance(container, set):
        container.clear()
        container.update(parts)
    elif isinstance(container, dict):
        container.clear()
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            container[key] = value
    elif isinstance(container, bytearray) and len(parts) == 1 and type(parts[0]) is bytes:
        container[:] = parts[0]
    else:
        raise Malformed("contents for what holds none")
