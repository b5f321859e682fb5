"""Runs the tests, unchanged, against code that is in another process, and says what came out.

Tests come from a data set, so this process is sandboxed as well; but no code of a response ever runs in it. It says
``ready``, then ``ok``, ``wrong WHY`` or ``error WHY``, one line each, on a descriptor that the code does not have.
"""

from __future__ import annotations

import builtins
import os
import sys
import types

from grpo_core.rewards.inside.confine import confine, seed_random
from grpo_core.rewards.inside.peer import Broken, Peer
from grpo_core.rewards.inside.remote import OPERATIONS

TYPE_CHECKING = False  # importing typing would take a third of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_MODULE = "__main__"
_SOLUTION = "solution"
_USUAL_MODULES = ("math", "collections", "itertools", "functools", "copy", "typing")
_DETAIL = 500


class _Unusable(Exception):
    """The tests themselves are at fault."""


class _Names(dict):  # type: ignore[type-arg]  # their name is not there when this runs
    """The tests' namespace. A name that they don't define is looked for in the standard library, then in the code."""

    def __init__(self, entry_point: str, peer: Peer) -> None:
        super().__init__(__name__=_MODULE, __builtins__=builtins)
        self._entry_point = entry_point
        self._peer = peer

    def __missing__(self, name: str) -> Any:
        if name == "candidate" and self._entry_point:
            return self[self._entry_point]
        if name != self._entry_point:
            if hasattr(builtins, name):
                raise KeyError(name)
            if name in sys.stdlib_module_names:
                return __import__(name)
            for module in _USUAL_MODULES:
                if name in getattr(__import__(module), "__all__", ()) or (module == "math" and _in_math(name)):
                    return getattr(sys.modules[module], name)
        found, value = self._peer.ask("lookup", name)
        if not found:
            raise KeyError(name)
        self[name] = value
        return value


def _in_math(name: str) -> bool:
    import math

    return hasattr(math, name)


def main() -> None:
    """Serves one check."""
    (source_end, sink_end, verdict_end), (tests, to_run, helpers, entry_point, most_bytes) = confine()

    def say(line: str) -> None:
        os.write(verdict_end, " ".join(line.split())[:_DETAIL].encode("utf-8", "replace") + b"\n")

    peer = Peer(source_end, sink_end, most_bytes, _permitted())
    try:
        peer.ask("ready")
    except Broken:
        os._exit(1)  # nothing of the code has run yet
    say("ready")
    try:
        line = _verdict(tests, to_run, helpers, entry_point, peer)
    except BaseException as error:  # no memory is left to say more about it
        line = f"wrong {type(error).__name__}"
    say(line)
    os._exit(0)


def _verdict(tests: Sequence[str], to_run: Sequence[str], helpers: str, entry_point: str, peer: Peer) -> str:
    try:
        _examine(tests, to_run, helpers, entry_point, peer)
    except _Unusable as error:
        return f"error {error}"
    except BaseException as error:
        if peer.broken:
            return f"wrong the code can't be asked any more: {peer.broken}"
        if isinstance(error, ImportError) and not hasattr(error, "is_theirs"):
            return f"error the tests can't be run: {error}"
        said = str(error).split("\n", 1)[0]
        return f"wrong {type(error).__name__}{said and f': {said}'}{_place(error, tests)}"
    return f"wrong the code can't be asked any more: {peer.broken}" if peer.broken else "ok"


def _examine(tests: Sequence[str], to_run: Sequence[str], helpers: str, entry_point: str, peer: Peer) -> None:
    """Returns when every test has passed."""
    try:
        compiled = [compile(test, f"<test {number}>", "exec", dont_inherit=True) for number, test in enumerate(tests)]
        trusted = compile(helpers, "<helpers>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _Unusable(f"the tests can't be compiled: {error}") from error
    peer.ask("load")
    names = _Names(entry_point, peer)
    _offer_module(peer)
    seed_random(helpers, *tests)
    try:
        exec(trusted, names)
    except Exception as error:
        raise _Unusable(f"what the prompt defines can't be run: {type(error).__name__}: {error}") from error
    names.pop(entry_point, None)
    called = _count_calls(peer)
    for code in compiled:
        try:
            exec(code, names)
        except SystemExit as leave:
            if hasattr(leave, "is_theirs") or (called() and leave.code not in (None, 0, False)):
                raise
    for name in to_run:
        _run_defined(name, names, entry_point)
    if not called():
        raise _Unusable("the tests never call the code")


def _offer_module(peer: Peer) -> None:
    """Lets tests say ``from solution import f``, as many data sets do; what the code lacks is a ``NameError``."""

    def value_of(name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        found, value = peer.ask("lookup", name)
        if not found:
            raise NameError(f"name {name!r} is not defined")
        return value

    module = types.ModuleType(_SOLUTION)
    vars(module)["__getattr__"] = value_of
    sys.modules[_SOLUTION] = module


def _run_defined(name: str, names: _Names, entry_point: str) -> None:
    """Runs what the tests define but don't run, if it is a test."""
    value = names.get(name)
    if name == "check" and isinstance(value, types.FunctionType):
        if not entry_point:
            raise _Unusable("the tests' check() needs an entry_point")
        value(names[entry_point])
    elif name.startswith("test") and isinstance(value, types.FunctionType):
        value()
    elif isinstance(value, type) and "unittest" in sys.modules:
        unittest = sys.modules["unittest"]
        if issubclass(value, unittest.TestCase):
            outcome = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(value).run(outcome)
            assert outcome.wasSuccessful(), "".join(text for _, text in outcome.failures + outcome.errors)[-_DETAIL:]


def _count_calls(peer: Peer) -> Callable[[], int]:
    """Counts what is asked of the code from here on, looking a name up left aside."""
    ask, counted = peer.ask, 0

    def counting(operation: str, *arguments: object) -> Any:
        nonlocal counted
        counted += operation != "lookup"
        return ask(operation, *arguments)

    peer.ask = counting  # type: ignore[method-assign]
    return lambda: counted


def _permitted() -> dict[str, Callable[..., Any]]:
    """What the code may do with what the tests hand to it: call it, iterate, and use public attributes and items.

    The last two only of objects whose class the tests define: a frame or a function would lead to the tests' text.
    """

    def own(operation: Callable[..., Any], named: bool) -> Callable[..., Any]:
        def checked(value: object, *arguments: Any) -> Any:
            public = not named or (isinstance(arguments[0], str) and arguments[0][:1] != "_")
            if type(value).__module__ != _MODULE or not public:
                raise TypeError("not permitted")
            return operation(value, *arguments)

        return checked

    permitted = {name: own(OPERATIONS[name], named=True) for name in ("get", "set")}
    permitted |= {name: own(OPERATIONS[name], named=False) for name in ("len", "bool", "str", "repr", "getitem")}
    return permitted | {name: OPERATIONS[name] for name in ("call", "iter", "next")}


def _place(error: BaseException, tests: Sequence[str]) -> str:
    """The line of the tests where it went wrong."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith("<test "):
            lines = tests[int(file[6:-1])].split("\n")
            found = f" at {lines[trace.tb_lineno - 1].strip()}" if trace.tb_lineno <= len(lines) else ""
        trace = trace.tb_next
    return found
