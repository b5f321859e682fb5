r"""Is an extracted answer equal to the gold? Text and exact numbers first, then readings of both, then math-verify.

``quick_check`` runs in the caller and takes microseconds. ``full_check`` runs only in a worker process that can be
killed (``workers``): it reads both sides itself (``structure``, ``equality``), which is bounded, and asks math-verify
0.9.0 about what it cannot read, and computer algebra has no bound on its time. Nothing that a model wrote is ever
evaluated as code: sympy turns number literals into Python source and calls ``eval`` on it, so a worker puts
``build_only`` there.

The conventions where labelled data disagrees stand in ``equality`` (percent, decimals, lists, equations), ``units``,
``structure`` (commas) and ``extract`` (what counts as the final answer).
"""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from grpo_core.rewards.choices import Choice, choice, choices
from grpo_core.rewards.equality import same
from grpo_core.rewards.extract import final_answer
from grpo_core.rewards.kinds import Reading, Scalar, Words
from grpo_core.rewards.normalise import bare, canonical, number, plain
from grpo_core.rewards.splitting import BrokenError
from grpo_core.rewards.structure import read
from grpo_core.rewards.tokens import TooLargeError, UnreadableError
from grpo_core.rewards.verdict import Verdict

MATH_VERSION = 3
"""Part of the reward fingerprint: raise it whenever extraction, normalisation or this check may change a verdict."""

MAX_ANSWER_CHARS = 2_000
"""A longer answer cannot be read as one, unless it is a sum of whole numbers."""

MAX_LONG_CHARS = 45_000
"""Longest sum that is worked out, and longest solution that a gold is looked for in: both fit into a worker's pipe."""

_DECIMALS_COMPARED = 6  # coarser decimals than these are told apart exactly
_SOLUTION_CHARS = 100  # a gold longer than this may be a solution that ends in a statement
_PROSE_WORDS = 5  # a gold of more words is no answer that another text could be compared with
_HEDGE = re.compile(
    r"(?<![\\A-Za-z])(?:or|not|nor|maybe|perhaps|possibly|between|either|if|unless|than|least|most|under|over|wrong|no|never)(?![A-Za-z])",
    re.I,
)
_IN_PROSE = re.compile(
    r"(?:[a-z]{2,20}\s+){2,9}(?P<number>-?[0-9]{1,30}(?:,[0-9]{3})*(?:\.[0-9]{1,30})?)(?:\s+[a-z]{2,20}){0,6}\.?"
)
_SUM = re.compile(r"[-+]?[0-9]{1,30}(?:\s*[-+]\s*[0-9]{1,30})+")
_GOLD_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|^\s*####", re.MULTILINE)
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def quick_check(answer: str, gold: str) -> tuple[Verdict, str] | None:
    """The verdict and its reason where text or exact fractions decide it; None where a full check is needed.

    Takes raw texts. Equal spellings, equal letters of a choice and equal numbers are ``ok``; ``50%`` counts as ``50``
    here, and only as that. Two integers, quotients or short decimals that differ are ``wrong``.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        answer = _shortened(answer)
        if len(answer) > MAX_ANSWER_CHARS:
            return Verdict.UNPARSABLE, f"the answer is longer than {MAX_ANSWER_CHARS} characters"
    if answer == gold and plain(gold):
        return Verdict.OK, ""
    gold = gold_answer(gold) if len(gold) <= MAX_LONG_CHARS else gold
    if len(gold) > MAX_ANSWER_CHARS:
        return Verdict.ERROR, f"the gold is longer than {MAX_ANSWER_CHARS} characters"
    answer_plain, gold_plain = plain(answer), plain(gold)
    if not gold_plain:
        return Verdict.ERROR, "the gold is empty"
    if not answer_plain:
        return Verdict.UNPARSABLE, "the answer is empty"
    if answer_plain == gold_plain:
        return Verdict.OK, ""
    if len(gold_plain) > 2 and gold_plain.isalpha() and gold_plain.casefold() == answer_plain.casefold():
        return Verdict.OK, ""
    answer_number, gold_number = number(answer_plain.removesuffix("%")), number(gold_plain.removesuffix("%"))
    if answer_number is None or gold_number is None:
        return _same_choice(answer, gold)
    if answer_number == gold_number:
        return Verdict.OK, ""
    both = answer_plain + gold_plain
    if "%" in both or "," in both or not _exactly_comparable(answer_number, gold_number):
        return None
    return Verdict.WRONG, ""


def gold_answer(gold: str) -> str:
    """The answer in a gold that is a whole solution: what stands in its boxes or behind ``####``, else all of it."""
    if _GOLD_BOX.search(gold) or (len(gold) > _SOLUTION_CHARS and "answer is" in gold):
        found = final_answer(gold)
        if found is not None:
            return found.answer
    return gold


def full_check(answer: str, gold: str) -> tuple[Verdict, str]:
    """The verdict and its reason. May run for ever and take any memory: only inside a worker.

    An answer that cannot be read is ``unparsable``; a gold that cannot be read is an ``error`` of the data. Values
    that cannot be compared at all (a matrix and a number) are ``wrong``.
    """
    answer, gold = _shortened(answer), gold_answer(gold)
    try:
        ours, theirs = _reading(gold), _reading(answer)
    except RecursionError:
        return Verdict.UNPARSABLE, "nested too deeply"
    if isinstance(ours, str) or (isinstance(ours, Words) and len(ours.text.split()) > _PROSE_WORDS):
        return Verdict.ERROR, f"the gold cannot be read: {ours if isinstance(ours, str) else 'it is prose'}"
    if isinstance(theirs, str):
        return Verdict.UNPARSABLE, f"the answer cannot be read: {theirs}"
    if isinstance(theirs, Words) and isinstance(ours, Scalar) and not _HEDGE.search(theirs.text):
        theirs = _only_number(theirs)
    if ours is not None and theirs is not None:
        try:
            equal = same(ours, theirs)
        except (TooLargeError, RecursionError) as error:
            return Verdict.UNPARSABLE, str(error) or type(error).__name__
        except UnreadableError:
            equal = None
        if equal is not None:
            return (Verdict.OK if equal else Verdict.WRONG), ""
    if theirs is None and _HEDGE.search(canonical(answer)):  # math-verify drops words, and with them what they say
        return Verdict.UNPARSABLE, "the answer is prose"
    return _verified(answer, gold)


def _shortened(answer: str) -> str:
    """A long sum of whole numbers added up, anything else stripped."""
    answer = answer.strip()
    if MAX_ANSWER_CHARS < len(answer) <= MAX_LONG_CHARS and _SUM.fullmatch(answer):
        return str(sum(map(int, re.findall(r"[-+]?[0-9]+", re.sub(r"\s", "", answer)))))
    return answer


def _reading(text: str) -> Reading | str | None:
    """The reading; None where only math-verify may know it; a reason where nothing will."""
    try:
        return read(canonical(text))
    except (BrokenError, TooLargeError) as error:
        return str(error)
    except UnreadableError:
        return None


def _only_number(words: Words) -> Reading:
    """The one number of a sentence about it: ``there are 17 students`` is 17."""
    prose = _IN_PROSE.fullmatch(words.text)
    found = None if prose is None else _reading(prose["number"])
    return found if isinstance(found, Scalar) else words


def _same_choice(answer: str, gold: str) -> tuple[Verdict, str] | None:
    """Compares letters of a multiple choice, where the gold is one."""
    several = choices(canonical(gold))
    if several and several == choices(canonical(answer)):
        return Verdict.OK, ""
    wanted, given = choice(canonical(gold)), choice(canonical(answer))
    if wanted is None:
        if (
            given is not None
            and given.text
            and given.letter in canonical(answer)[:3]
            and number(plain(given.text)) is not None
        ):
            return quick_check(given.text, gold)
        return None
    if given is not None and given.letter == wanted.letter and _is_letter(wanted, gold):
        return Verdict.OK, ""
    if wanted.text and plain(answer).casefold() == plain(wanted.text).casefold():
        return Verdict.OK, ""
    if given is not None and _is_letter(wanted, gold) and _is_letter(given, answer):
        return Verdict.WRONG, ""
    return None


def _is_letter(found: Choice, text: str) -> bool:
    """Whether a letter is one of a choice, not the name of a variable: upper case, or set off as one."""
    return bool(found.text) or found.letter in text or any(mark in text for mark in ").:(")


def _verified(answer: str, gold: str) -> tuple[Verdict, str]:
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
