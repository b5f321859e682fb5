"""Objects of the other end of the channel.

A test that holds a ``Remote`` can call it, read and set its attributes and items, and iterate over it: each gives plain
data or another ``Remote``. What would let the code decide about a value that the tests know is not passed on: a
``Remote`` equals itself alone, and neither ``<`` nor ``-`` nor ``in`` nor ``startswith`` brings the code such a value.
"""

from __future__ import annotations

import operator

TYPE_CHECKING = False  # importing typing would take a third of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from grpo_core.rewards.inside.peer import Peer

_DECIDING = frozenset({"startswith", "endswith", "issubset", "issuperset", "isdisjoint"})
_BINARY = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lt",
    "le",
    "gt",
    "ge",
)
_UNARY = ("neg", "pos", "abs", "invert")


class Remote:
    """An object of the other end."""

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_Remote__peer", peer)
        object.__setattr__(self, "_Remote__number", number)

    def __getattr__(self, name: str) -> Any:
        if name in _DECIDING:
            raise AttributeError(f"an object of the code has no attribute {name!r}")
        return self.__peer.ask("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__peer.ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__peer.ask("delete", self, name)

    def __len__(self) -> int:
        size: int = self.__ask("len")
        return size

    def __iter__(self) -> Any:
        return self.__ask("iter")

    def __bool__(self) -> bool:
        truth: bool = self.__ask("bool")
        return truth

    def __str__(self) -> str:
        text: str = self.__ask("str")
        return text

    def __repr__(self) -> str:
        text: str = self.__ask("repr")
        return text

    def __getitem__(self, key: object) -> Any:
        return self.__ask("getitem", key)

    def __setitem__(self, key: object, value: object) -> None:
        self.__ask("setitem", key, value)

    def __delitem__(self, key: object) -> None:
        self.__ask("delitem", key)

    def __enter__(self) -> Any:
        return self.__ask("enter")

    def __exit__(self, *details: object) -> Any:
        return self.__ask("exit")

    def __ask(self, operation: str, *arguments: object) -> Any:
        return self.__peer.ask(operation, self, *arguments)


def _between_remotes(name: str) -> Callable[[Remote, object], Any]:
    def method(self: Remote, other: object) -> Any:
        if not isinstance(other, Remote):
            return NotImplemented
        return object.__getattribute__(self, "_Remote__peer").ask(name, self, other)

    return method


def _of_itself(name: str) -> Callable[[Remote], Any]:
    def method(self: Remote) -> Any:
        return object.__getattribute__(self, "_Remote__peer").ask(name, self)

    return method


for _name in _BINARY:
    setattr(Remote, f"__{_name}__", _between_remotes(_name))
for _name in _UNARY:
    setattr(Remote, f"__{_name}__", _of_itself(_name))


class RemoteCallable(Remote):
    """A function or method of the other end."""

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        return object.__getattribute__(self, "_Remote__peer").ask("call", self, arguments, keywords)


class RemoteClass(RemoteCallable):
    """A class of the other end; no exception class, which is an exception class on this side too."""

    def __instancecheck__(self, instance: object) -> bool:
        if not isinstance(instance, Remote):
            return False
        return bool(object.__getattribute__(self, "_Remote__peer").ask("isinstance", instance, self))


class RemoteIterator(Remote):
    """A generator or other iterator of the other end."""

    def __next__(self) -> Any:
        return object.__getattribute__(self, "_Remote__peer").ask("next", self)


async def _awaited(peer: Peer, number: int) -> Any:
    return peer.ask("await", Remote(peer, number))


REMOTES: dict[str, Callable[[Peer, int], Any]] = {
    "o": Remote,
    "c": RemoteCallable,
    "t": RemoteClass,
    "i": RemoteIterator,
    "a": _awaited,
}
"""By the letter that says of which kind an object is."""


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return function(*arguments, **keywords)


def _await(value: Any) -> Any:
    import asyncio

    return asyncio.run(value)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "get": getattr,
    "set": setattr,
    "delete": delattr,
    "len": len,
    "iter": iter,
    "next": next,
    "bool": bool,
    "str": str,
    "repr": repr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value: type(value).__exit__(value, None, None, None),
    "isinstance": isinstance,
    "await": _await,
    **{name: getattr(operator, f"__{name}__") for name in (*_BINARY, *_UNARY)},
}
"""What one end may ask the other for."""
