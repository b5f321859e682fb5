r"""Finds the final answer in a response: boxes, answer tags, a ``####`` line, a statement, the last formula or number.

Conventions. Only what comes after a closed reasoning block counts, and only what comes before an end-of-turn marker or
a question that the model asked itself. The last box that is not denied is the answer, together with boxes right beside
it; a plain final statement after it ("Final answer: 10", "Answer: D") corrects it. A box or tag that is never closed is
no answer, and two ``<answer>`` tags that differ are several answers. Everything here is linear in the text.
"""

import json
import re
from dataclasses import dataclass

from grpo_core.rewards.boxes import boxed_answers, content, filled_boxes
from grpo_core.rewards.normalise import plain
from grpo_core.rewards.statements import last_match, last_number, stated_answer, trailing_answer

__all__ = ["Extracted", "final_answer", "last_boxed", "last_number"]

_HASHES = re.compile(r"^[ \t]*####[ \t]*(?P<answer>\S[^\n]*)$", re.MULTILINE)
_THINKING = re.compile(r"<(?P<close>/?)(?:think|thinking|thought|reasoning|scratchpad)>", re.IGNORECASE)
_TAG = re.compile(r"<(?P<close>/?)(?:answer|final_answer)>", re.IGNORECASE)
_TURN = re.compile(
    r"<\|(?:im_end|im_start|endoftext|eot_id|end|user|assistant|end_of_text|start_header_id)\|>|</s>|<end_of_turn>|<start_of_turn>|\[INST\]"
    r"|\n[ \t]*(?:Human|User|###\s*(?:Instruction|Question|Human|Problem))\s*:"
)
_FIRST_TURN = re.compile(
    r"\s*(?:<\|(?:im_start|start_header_id|assistant)\|>(?:assistant)?(?:<\|end_header_id\|>)?\s*)+"
)
_NEXT_QUESTION = re.compile(r"\n[ \t]*(?:\*\*)?(?:Question|Problem|Exercise|Q)\s*[0-9]{0,3}\s*(?:\*\*)?[.:]")
_ANSWERED = re.compile(r"####[ \t]*\S|\\(?:boxed|fbox)\s*\{|[Aa]nswer(?:\s*(?:is|:)|</)")
_ESCAPED_END = re.compile(r"\\{1,2}(?:boxed|fbox)\s*\{(?P<answer>[^{}]*[^{}\s\\])\s*\\+\}[\s$.]*")
_EMPTY_BOX = re.compile(r"\\{1,2}(?:boxed|fbox)\s*\{(?:\s|\\[,;:!]|~|\{\})*\}")
_BARE_BOX = re.compile(r"\\{1,2}(?:boxed|fbox)(?![A-Za-z{])")
_FIELD = re.compile(
    r"[{,]\s*([\"'])(?:final[_ ]?answer|answer)\1\s*:\s*"
    r"(?P<value>\"(?:[^\"\\]|\\.){0,2000}\"|'[^'\n]{0,2000}'|-?[0-9][0-9.eE+/,-]*[0-9]|-?[0-9]|\[[^\[\]]{1,300}\]|true|false)\s*(?=[},])",
    re.IGNORECASE,
)
_LATEX_NAME = re.compile(r"(?<!\\)\\(?=[A-Za-z]{2})")  # LaTeX whose backslash was not doubled: no \f of JSON's
_FENCED = re.compile(r"\s*```[A-Za-z]*[ \t]*\n(?P<inside>[^`]{1,300}?)\n?```\s*")
_SHORT = 300


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of an answer, and whether it stood in a box."""

    answer: str
    boxed: bool


def last_boxed(text: str) -> str | None:
    r"""The content of the last filled ``\boxed{…}`` or ``\fbox{…}`` of ``text``, stripped; None where there is none.

    Braces must balance, ``\{`` and ``\}`` are no braces, a box of blanks does not count, and a box never closed is no
    box. Of nested boxes the outer one counts (its content is the whole answer), unless it holds just the inner one.
    """
    boxes, _ = filled_boxes(text)
    return content(text, boxes[-1]) if boxes else None


def final_answer(text: str) -> Extracted | None:
    r"""The final answer of a response, or None where no answer can be read.

    Several boxes side by side give one answer, joined by commas. Outside a box a number is written plainly: thousands
    separators, currency and percent signs are dropped, ``\frac{3}{4}`` becomes ``3/4``.
    """
    text = _last_turn(text)
    thinking = list(_THINKING.finditer(text))
    if thinking:
        if not thinking[-1]["close"]:
            return None  # cut off while it was thinking
        text = text[thinking[-1].end() :]
    tags = list(_TAG.finditer(text))
    if tags:
        return _tagged(text, tags)
    return _untagged(text)


def _field_value(field: re.Match[str]) -> str:
    """The value of an ``"answer"`` field of JSON as text."""
    value = field["value"]
    if not value.startswith('"'):
        return value.strip("'")
    try:
        return str(json.loads(_LATEX_NAME.sub(r"\\\\", value), strict=False)).strip()
    except ValueError:
        return value[1:-1].strip()


def _last_turn(text: str) -> str:
    """The response without markers of turns, what follows them, and questions that the model went on to ask itself."""
    opening = _FIRST_TURN.match(text)
    if opening is not None:
        text = text[opening.end() :]
    turn = _TURN.search(text)
    if turn is not None and text[: turn.start()].strip():
        text = text[: turn.start()]
    answered = _ANSWERED.search(text)
    question = None if answered is None else _NEXT_QUESTION.search(text, answered.end())
    return text if question is None else text[: question.start()]


def _tagged(text: str, tags: list[re.Match[str]]) -> Extracted | None:
    contents: list[str] = []
    start: int | None = None
    for tag in tags:
        if tag["close"]:
            if start is not None:
                contents.append(text[start : tag.start()].strip())
            start = None
        else:
            start = tag.end()
    if start is not None or not contents:
        return None  # the last one is never closed
    found = [_inside(part) for part in dict.fromkeys(contents)]
    answers = [part for part in found if part is not None]
    if len(answers) != len(found):
        return None
    if len(answers) == 1:
        return answers[0]
    return Extracted("; ".join(answer.answer for answer in answers), False)


def _inside(part: str) -> Extracted | None:
    if not part:
        return None
    boxed = filled_boxes(part)
    if not boxed[0] and boxed[1] < 0 and len(part) <= _SHORT and "####" not in part:
        return Extracted(stated_answer(part) or part, False)
    return _untagged(part)


def _untagged(text: str) -> Extracted | None:
    boxes, cut_off = filled_boxes(text)
    if boxes:
        answers = boxed_answers(text, boxes)
        if not answers:
            return None
        boxed = ", ".join(dict.fromkeys(content(text, box) for box in answers))
        stated = stated_answer(text[answers[-1].end :], strong=True)
        if stated is not None and (len(boxed) > _SHORT or plain(stated) != plain(boxed)):
            return Extracted(stated, False)
        return Extracted(boxed, True)
    if cut_off >= 0:
        escaped = _ESCAPED_END.fullmatch(text, cut_off)  # a stray backslash hides the brace that closes the box
        return None if escaped is None else Extracted(escaped["answer"].strip(), True)
    line = last_match(_HASHES, text)
    if line is not None:
        return Extracted(line["answer"].strip(), False)
    if "box" in text:
        text = _BARE_BOX.sub(" ", _EMPTY_BOX.sub(" ", text))
    field = last_match(_FIELD, text) if "{" in text else None
    if field is not None:
        return Extracted(_field_value(field), False)
    fenced = _FENCED.fullmatch(text)
    if fenced is not None:
        text = fenced["inside"]
    answer = stated_answer(text) or trailing_answer(text)
    return None if not answer or not answer.strip() else Extracted(answer.strip(), False)
