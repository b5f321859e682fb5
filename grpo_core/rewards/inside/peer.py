"""One end of the channel between the tests and the code: asks, answers, and keeps track of objects.

Plain data goes by value, and what a call does to a list, dict or set that it was given is done to the caller's own.
Anything else goes as a number, and the other end holds a ``Remote`` for it. A frame is ``A`` (ask) or ``R`` (reply),
eight bytes of length, and one message of ``wire``.
"""

from __future__ import annotations

import builtins
import operator
import os
import sys

from grpo_core.rewards.inside.remote import OPERATIONS, REMOTES, Remote
from grpo_core.rewards.inside.wire import Malformed, Reader, Writer

TYPE_CHECKING = False  # importing typing would take a third of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

_HEADER = 9
_CHUNK = 1 << 20
_TEXT = 500
_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, set)
_EXCEPTION_MODULES = ("json.decoder", "decimal", "statistics", "struct", "_struct", "queue", "_queue", "re", "binascii")


class Broken(BaseException):
    """The other end is gone or does not keep to the protocol. No ``except Exception`` of a test may pass over it."""


class Peer:
    """An end of the channel. ``broken`` says why the channel is of no more use, once it is.

    Args:
        source, sink: descriptors to read from and to write to.
        most_bytes: the longest message taken.
        operations: what the other end may ask for, by name; each takes the objects themselves.
    """

    def __init__(
        self, source: int, sink: int, most_bytes: int, operations: Mapping[str, Callable[..., Any]] = OPERATIONS
    ) -> None:
        self._source = source
        self._sink = sink
        self._most_bytes = most_bytes
        self._operations = operations
        self._asked = 0
        self._own: list[object] = []
        self._numbers: dict[int, int] = {}
        self._theirs: dict[int, Any] = {}
        self._their_numbers: dict[int, int] = {}
        self._whole: list[object] = []
        self.broken = ""

    def ask(self, operation: str, *arguments: object) -> Any:
        """What the other end says when asked for an operation; meanwhile it may ask this end.

        Raises:
            BaseException: what the operation raised there, as an exception of this side marked by ``is_theirs``.
            Broken: see there.
        """
        if self.broken:
            raise Broken(self.broken)
        self._asked += 1
        number = self._asked
        writer = self._writer()
        self._send(b"A", writer.message((number, operation, arguments)))
        while True:
            kind, data = self._receive()
            if kind == b"A":
                self._answer(data)
                continue
            match self._read(Reader(self._adopt, writer.containers), data):
                case (int() as answered, True, value) if answered == number:
                    return value
                case (int() as answered, False, tuple() as description) if answered == number:
                    raise self._rebuilt(description)
            self._break("an answer to nothing that was asked")

    def serve(self) -> None:
        """Answers until the other end is gone.

        Raises:
            Broken: then.
        """
        while True:
            kind, data = self._receive()
            if kind != b"A":
                self._break("an answer to nothing that was asked")
            self._answer(data)

    def keep_whole(self, value: object) -> None:
        """Has ``value`` go as an object, even if its class derives from a builtin one."""
        self._whole.append(value)

    def _answer(self, data: bytes) -> None:
        reader = Reader(self._adopt)
        match self._read(reader, data):
            case (int() as number, str() as operation, tuple() as arguments):
                pass
            case _:
                self._break("no question")
        before = [_contents(container) for container in reader.containers]
        try:
            reply: tuple[Any, ...] = (number, True, self._operations[operation](*arguments))
        except Broken:
            raise
        except BaseException as error:
            reply = (number, False, self._described(error))
        changed = [
            index for index, container in enumerate(reader.containers) if not _same(before[index], _contents(container))
        ]
        try:
            message = self._writer(reader.containers).message(reply, changed)
        except Exception as error:
            message = self._writer().message((number, False, self._described(error)))
        self._send(b"R", message)

    def _writer(self, answered: list[Any] | None = None) -> Writer:
        return Writer(self._export, answered or (), lambda value: any(value is whole for whole in self._whole))

    def _export(self, value: Any) -> str:
        theirs = self._their_numbers.get(id(value))
        if theirs is None and isinstance(value, Remote):
            theirs = object.__getattribute__(value, "_Remote__number")
        if theirs is not None:
            return f"r{theirs}"
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._own)
            self._own.append(value)
        if isinstance(value, type):
            if issubclass(value, BaseException):
                return f"h{number}e{_builtin_base(value).__name__}"
            return f"h{number}t"
        if hasattr(type(value), "__next__"):
            return f"h{number}i"
        if hasattr(type(value), "__await__"):
            return f"h{number}a"
        return f"h{number}{'c' if callable(value) else 'o'}"

    def _adopt(self, token: str) -> Any:
        digits = token[1:].rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        number, kind = int(digits), token[1 + len(digits) :]
        if not digits.isdecimal():
            raise Malformed("an object without a number")
        if token[0] == "r":
            return self._own[number]
        if number not in self._theirs:
            made = _exception_class("builtins", kind[1:]) if kind[0] == "e" else None
            self._theirs[number] = REMOTES[kind](self, number) if made is None else type(made.__name__, (made,), {})
            self._their_numbers[id(self._theirs[number])] = number
        return self._theirs[number]

    def _described(self, error: BaseException) -> tuple[Any, ...]:
        kind = type(error)
        arguments = tuple(part if isinstance(part, _PLAIN) else _shown(part) for part in error.args)
        facts = {name: fact for name, fact in vars(error).items() if isinstance(fact, _PLAIN) and name[:1] != "_"}
        known = _exception_class(kind.__module__, kind.__name__) is kind
        return (kind.__module__ if known else "", kind.__name__ if known else kind, arguments, facts)

    def _rebuilt(self, description: tuple[Any, ...]) -> BaseException:
        kind: Any
        match description:
            case (str() as module, name, tuple() as arguments, dict() as facts):
                kind = name if isinstance(name, type) else _exception_class(module, str(name))
                if kind is None or not issubclass(kind, BaseException):
                    kind = Exception
            case _:
                self._break("no exception")
        try:
            error: BaseException = kind(*arguments)
        except Exception:  # its constructor takes other arguments than the error kept: what counts is the error
            error = kind.__new__(kind)
            error.args = arguments
        for fact, value in facts.items():
            if isinstance(fact, str) and fact.isidentifier() and fact[0] != "_":
                setattr(error, fact, value)
        error.is_theirs = True  # type: ignore[attr-defined]
        return error

    def _read(self, reader: Reader, data: bytes) -> Any:
        try:
            return reader.value(data)
        except (Malformed, RecursionError) as error:
            self._break(str(error))

    def _send(self, kind: bytes, message: bytes) -> None:
        left = memoryview(kind + len(message).to_bytes(8, "big") + message)
        try:
            while left:
                left = left[os.write(self._sink, left) :]
        except OSError:
            self._break("its process ended")

    def _receive(self) -> tuple[bytes, bytes]:
        header = self._exactly(_HEADER)
        size = int.from_bytes(header[1:], "big")
        if header[:1] not in (b"A", b"R"):
            self._break("no frame")
        if size > self._most_bytes:
            self._break("over the output limit")
        return header[:1], self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                part = os.read(self._source, min(_CHUNK, size - len(received)))
            except OSError:
                part = b""
            if not part:
                self._break("its process ended")
            received += part
        return bytes(received)

    def _break(self, why: str) -> NoReturn:
        self.broken = self.broken or why
        raise Broken(why) from None


def _shown(value: object) -> str:
    try:
        return str(value)[:_TEXT]
    except Exception:  # whatever a foreign __str__ raises: there is no text, then
        return f"<{type(value).__name__}>"


def _contents(container: Any) -> Any:
    if isinstance(container, dict):
        return [part for pair in container.items() for part in pair]
    return bytes(container) if isinstance(container, bytearray) else list(container)


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, bytes):
        return bool(before == after)
    return len(before) == len(after) and all(map(operator.is_, before, after))


def _builtin_base(kind: type) -> type:
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _exception_class(module: str, name: str) -> Any:
    """An exception class of the builtins or of a plain module; never one by which a test framework is steered."""
    if module != "builtins" and (module not in _EXCEPTION_MODULES or module not in sys.modules):
        return None
    found = getattr(builtins if module == "builtins" else sys.modules[module], name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
