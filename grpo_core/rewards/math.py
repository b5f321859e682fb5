"""Is an extracted answer equal to the gold? A cheap exact check first, math-verify 0.9.0 for the rest.

``quick_check`` runs in the caller and takes microseconds. ``full_check`` runs only in a worker process that can be
killed (``workers``): computer algebra has no bound on its time. Nothing that a model wrote is ever evaluated as code:
sympy turns number literals into Python source and calls ``eval`` on it, so a worker puts ``build_only`` there.
"""

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from grpo_core.rewards.normalise import bare, number, plain
from grpo_core.rewards.verdict import Verdict

MATH_VERSION = 1
"""Part of the reward fingerprint: raise it whenever extraction, normalisation or this check may change a verdict."""

MAX_ANSWER_CHARS = 2_000
"""A longer answer cannot be read as one."""

_DECIMALS_COMPARED = 6  # math-verify rounds decimals to as many places, so coarser ones can be told apart exactly
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def quick_check(answer: str, gold: str) -> tuple[Verdict, str] | None:
    """The verdict and its reason where text or exact fractions decide it; None where a full check is needed.

    Takes raw texts. Equal spellings and equal numbers are ``ok``; ``50%`` counts as ``50`` here, and only as that.
    Two integers, quotients or short decimals that differ are ``wrong``.
    """
    if len(answer.strip()) > MAX_ANSWER_CHARS:
        return Verdict.UNPARSABLE, f"the answer is longer than {MAX_ANSWER_CHARS} characters"
    if len(gold) > MAX_ANSWER_CHARS:
        return Verdict.ERROR, f"the gold is longer than {MAX_ANSWER_CHARS} characters"
    answer_plain, gold_plain = plain(answer), plain(gold)
    if not answer_plain:
        return Verdict.UNPARSABLE, "the answer is empty"
    if answer_plain == gold_plain:
        return Verdict.OK, ""
    answer_number, gold_number = number(answer_plain.rstrip("% ")), number(gold_plain.rstrip("% "))
    if answer_number is None or gold_number is None:
        return None
    if answer_number == gold_number:
        return Verdict.OK, ""
    if "%" in answer_plain + gold_plain or not _exactly_comparable(answer_number, gold_number):
        return None
    return Verdict.WRONG, ""


def full_check(answer: str, gold: str) -> tuple[Verdict, str]:
    """The verdict of math-verify, and its reason. May run for ever and take any memory: only inside a worker.

    An answer that cannot be parsed is ``unparsable``; a gold that cannot be parsed is an ``error`` of the data. Values
    that cannot be compared at all (a matrix and a number) are ``wrong``, with the reason kept.
    """
    from math_verify import verify

    gold_parsed = _parsed(gold)
    if not gold_parsed:
        return Verdict.ERROR, "the gold cannot be parsed"
    answer_parsed = _parsed(answer)
    if not answer_parsed:
        return Verdict.UNPARSABLE, "the answer cannot be parsed"
    try:
        equal = verify(gold_parsed, answer_parsed, timeout_seconds=None, raise_on_error=True)
    except (MemoryError, RecursionError) as error:
        return Verdict.ERROR, type(error).__name__
    except Exception as error:  # whatever sympy raises for values that it cannot compare: they are not equal
        return Verdict.WRONG, f"not comparable: {type(error).__name__}"
    return (Verdict.OK if equal else Verdict.WRONG), ""


def build_only(code: object, *_namespaces: object) -> Any:
    """Stands in for ``sympy.parsing.sympy_parser.eval_expr``, which calls ``eval``: walks the code's syntax tree.

    Numbers, symbols, ``sqrt``, ``E``, ``pi``, ``I`` and arithmetic are built, which is what sympy asks for (literals in
    an answer, constants of its own that load late); any other name, attribute or call is refused.

    Raises:
        ValueError: for anything else.
    """
    if not isinstance(code, str):
        raise ValueError("compiled code is never run here")
    return _built(ast.parse(code.strip(), mode="eval").body)


def _built(node: ast.expr) -> Any:
    import sympy

    match node:
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.Name(id="E" | "pi" | "I"):
            return getattr(sympy, node.id)
        case ast.Call(func=ast.Name(id="Integer" | "Float" | "Rational" | "Symbol" | "sqrt" as name), keywords=[]):
            return getattr(sympy, name)(*map(_built, node.args))
        case ast.UnaryOp(op=ast.USub()):
            return -_built(node.operand)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](_built(node.left), _built(node.right))
    raise ValueError("text is never evaluated as code here")


def _parsed(text: str) -> list[Any]:
    r"""math-verify's reading of one answer, as LaTeX only: its reader of plain expressions ends in ``eval``.

    Its timeouts rest on signals, which only a main thread can take; the worker's own limit stands in for them.
    """
    from math_verify import LatexExtractionConfig, parse

    parsed: list[Any] = parse(
        f"\\boxed{{{bare(text)}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return parsed


def _exactly_comparable(first: Fraction, second: Fraction) -> bool:
    scale = 10**_DECIMALS_COMPARED
    return bool(scale % first.denominator == 0 and scale % second.denominator == 0)
