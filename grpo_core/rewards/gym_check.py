"""An answer marked by the scorer of its reasoning-gym data set; runs in a worker that can be killed.

Several scorers call Python's ``eval`` on the answer, or sympy's parser, which ends in ``eval``. A model's text would
run as code there, and could read the entry's own answer while it does. :func:`nothing_is_run` puts evaluators in their
place that know values and arithmetic alone.
"""

import ast
import inspect
import json
import operator
import random
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from grpo_core.rewards.verdict import Verdict

_CACHED_DATASETS = 64
_VALUES = (
    ast.Expression,
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.UnaryOp,
    ast.BinOp,
    ast.unaryop,
    ast.operator,
    ast.Load,
)
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_NUMBERS = ("Integer", "Float", "Rational", "Symbol", "sqrt", "cbrt", "root")


def gym_check(answer: str, task: str) -> tuple[Verdict, str, float | None]:
    """The verdict and the mark of the set's own scorer: ``ok`` for 1, ``wrong`` with the mark for less.

    Args:
        task: a JSON object of ``dataset``, ``options``, and ``entry``: an object, or a Python literal of one.

    Raises:
        Exception: whatever the scorer raises; the caller makes it an ``error``.
    """
    asked = json.loads(task)
    entry = asked["entry"]
    entry = ast.literal_eval(entry) if isinstance(entry, str) else entry
    dataset = _dataset(asked["dataset"], json.dumps(asked["options"], sort_keys=True))
    random.seed(0)
    mark = float(dataset.score_answer(answer, entry))
    if mark >= 1:
        return Verdict.OK, "", mark
    return Verdict.WRONG, f"marked {mark:g} by {asked['dataset']}", mark


def nothing_is_run() -> None:
    """Let no scorer of this process evaluate text as code: ``eval`` in reasoning-gym's modules, and sympy's parser."""
    import reasoning_gym  # noqa: F401
    import sympy.parsing.sympy_parser

    sympy.parsing.sympy_parser.eval_expr = _built
    for name, module in list(sys.modules.items()):
        if name.startswith("reasoning_gym."):
            vars(module)["eval"] = _evaluated


@lru_cache(maxsize=_CACHED_DATASETS)
def _dataset(name: str, options: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=1, seed=0, **json.loads(options))


def _evaluated(text: str, *_namespaces: object) -> Any:
    """``eval`` for literals and arithmetic on them. Raises ValueError for anything else."""
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _VALUES) or isinstance(node, ast.Pow):
            raise ValueError("an answer is never run as code")
    return eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}})


def _built(code: object, local_dict: Mapping[str, Any], global_dict: Mapping[str, Any]) -> Any:
    """``eval_expr`` of sympy for numbers, symbols, its own mathematical functions and arithmetic.

    Raises:
        ValueError: for anything else.
    """
    if not isinstance(code, str):
        raise ValueError("compiled code is never run here")
    return _expression(ast.parse(code.strip(), mode="eval").body, {**global_dict, **local_dict})


def _expression(node: ast.expr, names: Mapping[str, Any]) -> Any:
    import sympy

    match node:
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.Name() if isinstance(names.get(node.id), sympy.Basic):
            return names[node.id]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _NUMBERS or _is_function(names.get(name)):
            return names[name](*(_expression(argument, names) for argument in node.args))
        case ast.UnaryOp() if type(node.op) in _SIGNS:
            return _SIGNS[type(node.op)](_expression(node.operand, names))
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](_expression(node.left, names), _expression(node.right, names))
    raise ValueError("an answer is never run as code")


def _is_function(value: object) -> bool:
    import sympy

    return inspect.isclass(value) and issubclass(value, sympy.Function)
