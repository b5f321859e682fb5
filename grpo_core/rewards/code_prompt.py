"""What a prompt holds in the way of code: the function to be completed, and helpers that its tests may rely on."""

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from grpo_core.rewards.code_extract import alternatives, defines

_BUILTINS = frozenset(dir(builtins))
_parsing = Lock()


@dataclass(frozen=True, slots=True)
class PromptCode:
    """Python source in a prompt: ``code`` ends in the function to complete, ``preamble`` runs by itself, and
    ``helpers`` are the definitions that are whole, which the tests take from here and never from a response."""

    code: str = ""
    preamble: str = ""
    helpers: str = ""


@lru_cache(maxsize=4096)
def code_of_prompt(prompt: str, entry_point: str) -> PromptCode:
    """The code in a prompt that asks for the completion of ``entry_point``; empty parts where it shows none."""
    if not entry_point or not defines(prompt, entry_point):
        return PromptCode()
    shown = [sources[0] for sources in alternatives(prompt, entry_point)]
    for code in [prompt, *shown]:
        for preamble in (code, f"{code.rstrip()}\n    pass\n", f"{code.rstrip()}\n        pass\n"):
            tree = parsed(preamble)
            if tree is not None:
                helpers = [node for node in tree.body if _is_helper(node, entry_point)]
                return PromptCode(code, preamble, ast.unparse(ast.Module(helpers, [])))
    return PromptCode()


@lru_cache(maxsize=4096)
def called_names(tests: Sequence[str]) -> tuple[str, ...]:
    """Names that tests call and neither define nor import, builtin ones last: the first that code has is tested."""
    nodes = [node for test in tests if (tree := parsed(test)) for node in ast.walk(tree)]
    own = set(_bound(nodes))
    called = (node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    names = [name for name in dict.fromkeys(called) if name not in own]
    return tuple(sorted(names, key=_BUILTINS.__contains__))


@lru_cache(maxsize=4096)
def not_run(tests: Sequence[str]) -> tuple[str, ...]:
    """Names of functions and classes at the top of tests that nothing there refers to: a test framework runs these."""
    trees = [tree for test in tests if (tree := parsed(test))]
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    defined = [node.name for tree in trees for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return tuple(name for name in dict.fromkeys(defined) if name not in used)


def parsed(source: str) -> ast.Module | None:
    """The tree of Python source, None where it is none. From any thread.

    One at a time: Python 3.11 counts the depth of trees under construction for all threads together, and two that meet
    end in a SystemError (https://github.com/python/cpython/issues/106905).
    """
    try:
        with _parsing:
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _is_helper(node: ast.stmt, entry_point: str) -> bool:
    """Whether a statement of a prompt is complete: an import, an assignment, or a definition without an empty body."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)):
        return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name != entry_point and not _is_empty(node)
    if isinstance(node, ast.ClassDef):
        methods = [part for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return node.name != entry_point and bool(methods) and not any(map(_is_empty, methods))
    return False


def _is_empty(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(isinstance(part, (ast.Expr, ast.Pass)) for part in function.body)
