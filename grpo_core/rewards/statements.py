r"""The answer of a response that has no box: what follows "the answer is", else the last formula, letter or number.

A statement is read as far as it goes: ``The answer is 3 or 4`` states two values, ``The final answer: 1 2 3`` none. The
phrase is known in a dozen languages. Everything is bounded, since a model may write anything.
"""

import re
from collections import deque

from grpo_core.rewards.characters import ascii_math
from grpo_core.rewards.number_words import words_value
from grpo_core.rewards.together import together
from grpo_core.rewards.units import NOUN, read_unit

_STATEMENT_CHARS = 400
_TAIL_CHARS = 20_000  # how much of a response's end is searched for formulas and phrases
_PHRASE = re.compile(
    r"(?<![A-Za-z])(?:(?:final|correct|right|best|my)\s+)*(?:answers?|solution set)\b(?!s?['’])(?:\s+(?:to"
    r"|of|for|choice|option)\b[^.\n:$]{0,60}?)?"
    r"[\s\"'_*]*(?:is|are|was|would be|should be|must be|:|=|：|-)(?:\s*:)?(?![A-Za-z])"
    r"|(?i:r[ée]ponse(?:\s+finale)?(?:\s|\*\*)*(?:est|:)|(?:antwort|l[öo]sung|ergebnis)(?:\s|\*\*)*(?:ist|lautet|:)"
    r"|respuesta(?:\s+final)?(?:\s|\*\*)*(?:es|:)|resposta(?:\s+final)?(?:\s|\*\*)*(?:é|e|:)|risposta(?:\s+finale)?(?:\s|\*\*)*(?:è|e|:)"
    r"|ответ(?:\s|\*\*)*(?::|—|–|-|это)?|odpowiedź(?:\s|\*\*)*(?:to|:)|antwoord(?:\s|\*\*)*(?:is|:)"
    r"|đáp án(?:\s|\*\*)*(?:là|:)|cevap(?:\s|\*\*)*:?)"
    r"|(?:最终|最后|正确)?(?:的)?答案(?:应该)?(?:\*\*)?\s*(?:是|为|：|:)+|(?:故|应|因此|所以|本题|答案)?(?<![不未没])选(?:择)?(?:项)?(?:是|为)?[：:]?(?=\s*[（(]?[A-J])|(?:故|应)填[：:]?|正确(?:的)?选项(?:是|为)[：:]?"
    r"|(?<![\u4e00-\u9fff])答[：:]|(?:解集|坐标|取值范围|值域|定义域|区间)(?:为|是|：|:)|解(?:为|是)|(?:答え|解答)(?:は|：|:)|(?:정답|답)(?:은|는|:)"
    r"|(?:الجواب|الإجابة)(?:\s+النهائية)?\s*(?:هو|هي|:)|उत्तर\s*(?:है|:)",
    re.IGNORECASE,
)
_STRONG = re.compile(r"final\s+answer|\banswer(?:\s|\*\*|[\"'])*:|answer\s+is|答案", re.IGNORECASE)
_FILLER = re.compile(
    r"\A(?:\s|[:*_\"“”'`>]|\\[\"]|-(?=\s)|(?:approximately|about|roughly|exactly|simply|just|clearly|definitely|certainly|obviously|"
    r"for sure|therefore|thus|given by|indeed|either|option|choice|letter|only|equal to|number|value|is|are"
    r"|est|es|ist|约|大约|选项?)(?![A-Za-z]))*",
    re.IGNORECASE,
)
_MATH = re.compile(
    r"\$\$(?P<display>[^$]{1,2000}?)\$\$"
    r"|(?<!\\)\$(?P<inline>(?:\\\$|[^$\n]|\n(?!\n)){1,600}?)(?<!\\)\$(?![0-9])"
    r"|\\\((?P<round>.{1,1500}?)\\\)"
    r"|\\\[(?P<square>.{1,1500}?)\\\]"
    r"|(?P<rows>\\begin\{(?P<name>align|equation|gather|multline)(?P<star>\*?)\}.{1,1500}?\\end\{(?P=name)(?P=star)\})",
    re.DOTALL,
)
_LINES = re.compile(
    r"\\begin\{(?P<name>align(?:ed)?|gather(?:ed)?|split|equation|multline)(?P<star>\*?)\}(?P<body>.*)\\end\{(?P=name)(?P=star)\}",
    re.DOTALL,
)
_JOINT = re.compile(r"\s*(?:,?\s*(?:and|or|und|oder|et|ou|和|或|与)(?![A-Za-z])|,|;|、|，)\s*\Z", re.IGNORECASE)
_PERCENT_AFTER = re.compile(r"\s*(?:\\?%|percent(?:age)?\b|pct\b)", re.IGNORECASE)
_ENGLISH = re.compile(r"[A-Za-z]{2,}")
_LETTER = re.compile(
    r"\(?(?P<letter>[A-HJ-Z])\)?(?=\s*(?:[.,:;)!?*\"]|\Z|\n|[^\x00-\x7f]|\s(?:because|since|as|which|it"
    r"|and not|non|not|nicht)\b))"
)
_LETTERS = re.compile(r"\(?[A-HJ]\)?(?:\s*(?:,|and|or|/|&|or maybe)\s*\(?[A-HJ]\)?)+(?![A-Za-z])")
_SENTENCE_END = re.compile(r"(?<![0-9])\.(?=\s|\Z|\*)|(?<=[0-9])\.(?=\s|\Z|\*)|\n\s*\n|(?<=\S)\n|[。!?！？]|<")
_COPULA = re.compile(
    r"(?:(?<![A-Za-z])(?:is|are|equals?|was|becomes|est|ist|es|makes?|gives?)(?![A-Za-z])|=|:|是|为)\s*"
)
_NUMBER_TEXT = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_PIECE = re.compile(
    r"\s*(?:[-+]?(?:\\?[$€£¥])?(?:" + _NUMBER_TEXT + r")(?:[eE][-+]?[0-9]{1,4}(?![0-9A-Za-z]))?"
    r"|\\(?:frac|[dt]frac|binom)\s*(?:\{[^{}]{1,80}\}|[0-9])\s*(?:\{[^{}]{1,80}\}|[0-9])|\\sqrt(?:\[[^\[\]]{1,9}\])?\s*(?:\{[^{}]{1,80}\}|[0-9])"
    r"|\\(?:pi|cdot|times|div|pm|le|ge|ne|infty|in|cup|circ|theta|alpha|beta)(?![A-Za-z])\s?|\\[{}]|\^\s*\{[^{}]{1,40}\}|(?:sqrt|sin|cos|tan|log|ln|pi)(?![A-Za-z])"
    r"|[-+*/^=<>()\[\]{}|!%,:;]|(?<![A-Za-z'])[A-Za-z](?![A-Za-z']))"
)
_DECIMAL_COMMA = re.compile(
    r"(?<![0-9,.(\[{])(?:(?P<whole>[0-9]+),(?P<part>[0-9]{1,2}|[0-9]{4,})|0,(?P<small>[0-9]{3,}))(?![0-9,])(?!\s*,)"
)
_AFTER_WORDS = re.compile(r"\s*(?P<words>[^\s.,;:!?\n]+(?:\s+[^\s.,;:!?\n]+){0,2})")
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    r"(?<![A-Za-z_][0-9])(?<![A-Za-z_])(?P<sign>(?<![0-9A-Za-z)\]}%])[-+\u2212]\s?)?"
    r"(?:\\?[$€£¥]\s?)?(?<![A-Z])"
    rf"(?:\\[dtc]?frac\{{(?P<top>[0-9]{{1,40}})\}}\{{(?P<bottom>[0-9]{{1,40}})\}}"
    rf"|(?P<number>{_DIGITS})"
    r"(?:(?P<exponent>[eE][-+]?[0-9]{1,3})(?![0-9A-Za-z])|\s?/\s?(?P<denominator>[0-9]+)(?![0-9]))?)"
)
_PICKED = re.compile(
    r"(?:(?:is|it's|it’s|be|choose|pick|select|est|ist|es|option|choice)\s+(?:option\s+|choice\s+)?|选|故选)\s*\(?\*{0,2}(?P<letter>[A-HJ])\*{0,2}\)?(?=[\s.,:;)*!?]|\Z|[^\x00-\x7f])"
)
_DENIED = re.compile(
    r"(?:不是|并非)\s*\Z|(?:\bnot|n't|n’t|\bnever)\s+(?:be\s+|equal\s+(?:to\s+)?|the\s+)?\Z", re.IGNORECASE
)
_FIRST_LETTER = re.compile(r"\s*\*{0,2}\(?(?P<letter>[A-HJ])\)?\*{0,2}(?:\s*[.:,。、，)]|\Z|(?=[\u3040-\u9fff]))")
_TOUCHED = re.compile(r"\s?(?:\\?pi\b|π|√|\\sqrt|\\pi|\^|\*\*(?=[0-9(])|²|³|!)|\s?[*/]\s?(?:\\?pi|π|sqrt|√)")
_DENIALS = 3  # values denied beside the answer: 9, not 8
_BOLD = re.compile(r"(?<![0-9A-Za-z)*])\*\*(?P<inside>(?![\s*])[^*]{1,80})\*\*(?![0-9A-Za-z(*])")
_BUT_NOT = re.compile(r"(?:,|\()\s*(?:and\s+|but\s+)?not\s+\Z", re.IGNORECASE)
_UNDERLINED = re.compile(r"(?<![A-Za-z0-9_])__(?P<inside>[^_\n]{1,80})__(?![A-Za-z0-9_])")
_JOINED = re.compile(
    r"\s*(?:(?<![A-Za-z])(?:and|or)\s+|[和或与]\s*)(?=(?:[a-z]\s?=\s?)?[-+]?[0-9]+(?:\.[0-9]+)?\s*(?:[.,;]|\Z))"
)
_RUN_CHARS = re.compile(r"[^\s=,;:\"'“”]{1,120}")


def stated_answer(text: str, strong: bool = False) -> str | None:
    """What the last "answer is" phrase of ``text`` states; ``strong``: only where a value follows at once."""
    for phrase in reversed(list(_PHRASE.finditer(text, max(0, len(text) - _TAIL_CHARS)))):
        if strong and not _STRONG.search(phrase[0]):
            continue
        value = _stated(text[phrase.end() : phrase.end() + _STATEMENT_CHARS], strong)
        if value is not None:
            return value
    return None


def trailing_answer(text: str, denials: int = _DENIALS) -> str | None:
    """The last formula, or what stands after it: a number, a letter; a text without prose is an answer as it is."""
    tail = text[-_TAIL_CHARS:]
    if len(text) <= 300 and _is_formula(text):
        text = _BOLD.sub(r"\g<inside>", text.strip())
        whole = _MATH.fullmatch(text)
        return text if whole is None else _inner(whole)
    text = _UNDERLINED.sub(r"\g<inside>", text) if "__" in text else text
    tail = text[-_TAIL_CHARS:]
    first = _FIRST_LETTER.match(text)
    if first is not None and not re.search("[0-9]", text):
        return first["letter"]
    formula = _last_formula(tail)
    number = last_match(_NUMBER, tail)
    at = number.start() if number is not None else 0
    if formula is not None and formula[1] > at:
        at = formula[2]
    if _DENIED.search(tail[max(0, at - 40) : at]):
        aside = _BUT_NOT.search(tail[max(0, at - 40) : at])
        if aside is None or not denials:
            return None
        return trailing_answer(tail[: max(0, at - 40) + aside.start()], denials - 1)
    if formula is not None and (number is None or number.start() < formula[1]):
        return formula[0]
    if number is None:
        picked = last_match(_PICKED, tail)
        return None if picked is None or "not" in tail[max(0, picked.start() - 8) : picked.end()] else picked["letter"]
    several = together(tail, number.start())
    if several is not None:
        return several
    touching = _touching(tail, number)
    return touching if touching is not None else last_number(tail)


def last_number(text: str) -> str | None:
    """The last number of ``text`` as ``-1234.5``, ``3/4`` or ``1.5e3``; None where there is none that stands alone."""
    if not text.isascii():
        text = "".join(
            ascii_math(character) if character.isdecimal() or character in "−，．½¼¾" else character
            for character in text
        )
    text = _DECIMAL_COMMA.sub(_with_point, text)
    match = last_match(_NUMBER, text)
    if match is None:
        return None
    sign = "-" if (match["sign"] or "").strip() in ("-", "\u2212") else ""
    if match["top"]:
        return f"{sign}{match['top']}/{match['bottom']}"
    number = match["number"].replace(",", "")
    if match["denominator"]:
        return f"{sign}{number}/{match['denominator']}"
    return f"{sign}{number}{match['exponent'] or ''}"


def _with_point(match: re.Match[str]) -> str:
    return f"{match['whole'] or 0}.{match['part'] or match['small']}"


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match of ``pattern`` in ``text``, or None."""
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _stated(rest: str, strong: bool) -> str | None:
    filler = _FILLER.match(rest)
    rest = rest[filler.end() :] if filler is not None else rest
    if re.match(r"(?:not|n't|never|unknown|unclear|不是)\b", rest):
        return None
    direct = _value_at_start(rest)
    if direct is not None or strong:
        return direct
    end = _SENTENCE_END.search(rest, 1 if rest[:1] == "\n" else 0)
    sentence = rest[: end.start()] if end is not None else rest
    for copula in _COPULA.finditer(sentence):
        value = _value_at_start(sentence[copula.end() :], letters=False)
        if value is not None:
            return value
    words = sentence.strip().strip("*_\"'“”.,: ")
    if not re.search("[0-9$\\\\]", words):
        clause = re.split("[,，;(]", words)[0].strip()
        return clause if clause and (len(clause.split()) <= 4 or words_value(clause) is not None) else None
    number = _NUMBER.search(sentence)
    return None if number is None else _value_at_start(sentence[number.start() :])


def _value_at_start(text: str, letters: bool = True) -> str | None:
    """The formula, letter or number that ``text`` begins with, with its unit or percent sign."""
    formulas = _formulas_at_start(text)
    if formulas is not None:
        return formulas
    if letters:
        several = _LETTERS.match(text)
        if several is not None:
            return several[0]
        letter = _LETTER.match(text)
        if letter is not None:
            return letter["letter"]
    return _chunk(text)


def _formulas_at_start(text: str) -> str | None:
    parts: list[str] = []
    place = 0
    while True:
        match = _MATH.match(text, place)
        if match is None:
            break
        inner = _inner(match)
        if _is_prose(inner):
            break
        percent = _PERCENT_AFTER.match(text, match.end())
        parts.append(inner + ("%" if percent is not None else ""))
        place = percent.end() if percent is not None else match.end()
        following = _MATH.search(text, place)
        if following is None or not _JOINT.match(text[place : following.start()]):
            if len(parts) == 1:
                unit = _unit_after(text[place:])
                return parts[0] + unit
            break
        place = following.start()
    return ", ".join(parts) if parts else None


def _inner(match: re.Match[str]) -> str:
    inner = (match["display"] or match["inline"] or match["round"] or match["square"] or match["rows"] or "").strip()
    lines = _LINES.fullmatch(inner)
    return inner if lines is None else _last_line(lines["body"])


def _last_line(body: str) -> str:
    """What a derivation over several lines ends with; a line that starts with its sign goes on from the one above."""
    lines = [line.strip(" \n.,") for line in body.replace("&", " ").split("\\\\")]
    lines = [line for line in lines if line]
    return lines[-1] if lines else ""


def _chunk(text: str) -> str | None:
    """The run of plain arithmetic at the start of ``text``, and a known unit behind it."""
    text = _DECIMAL_COMMA.sub(_with_point, ascii_math(text))
    place = 0
    while place < len(text):
        piece = _PIECE.match(text, place)
        if piece is None:
            joint = _JOINED.match(text, place)
            if joint is None:
                break
            piece = joint
        place = piece.end()
    chunk = re.sub(r"[\s,:;=<>*/+(\[{-]+\Z", "", text[:place]).strip()
    chunk = re.sub(r"\s+[A-Za-z]\Z", "", chunk)
    if re.search(r"[0-9]!+\Z", chunk) and not text[place:].strip():
        chunk = chunk.rstrip("!")  # nobody ends a sentence with a factorial more often than with joy
    if not re.search(r"[0-9]|\\[a-z]|\Api\b", chunk):
        return None
    return chunk + _unit_after(text[len(text[:place].rstrip(" ,:;(-")) :])


def _unit_after(text: str) -> str:
    """A known unit at the start of ``text``, with a space before it; a noun is none."""
    percent = _PERCENT_AFTER.match(text)
    if percent is not None:
        return "%"
    match = _AFTER_WORDS.match(text)
    if match is None or text[:1] in ".,;:\n":
        return ""
    words = match["words"].strip("*").split()
    for count in range(len(words), 0, -1):
        unit = read_unit(" ".join(words[:count]))
        if unit is not None and unit != NOUN:
            return " " + " ".join(words[:count])
    return ""


def _last_formula(text: str) -> tuple[str, int, int] | None:
    """The last formulas that belong together, and the offsets where they end and where they start."""
    found: list[tuple[str, int, int]] = []
    for match in _MATH.finditer(text):
        inner = _inner(match)
        if inner and not _is_prose(inner):
            percent = _PERCENT_AFTER.match(text, match.end())
            end = percent.end() if percent is not None else match.end()
            found.append((inner + ("%" if percent is not None else ""), match.start(), end))
    if not found:
        return None
    parts = [found[-1]]
    for formula in reversed(found[:-1]):
        if not _JOINT.match(text[formula[2] : parts[0][1]]):
            break
        parts.insert(0, formula)
    return ", ".join(part[0] for part in parts), parts[-1][2], parts[0][1]


def _is_prose(inner: str) -> bool:
    """Whether two dollar signs of money, not of mathematics, hold this text."""
    stripped = re.sub(r"\\(?:text|mathrm|textbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", inner)
    words = _ENGLISH.findall(stripped)
    return len(words) > 1 and (
        len([word for word in words if len(word) > 2]) > 1 or bool(re.search(r"[?!]|\. ", stripped))
    )


def _is_formula(text: str) -> bool:
    """Whether a whole text is one formula: something mathematical and no word of prose."""
    text = text.strip().strip("$").strip()
    if "\n\n" in text or ("$" in text.strip("$")[1:] and not re.search(r"\\\$|[0-9]\$|\$[0-9]", text)):
        return False
    stripped = re.sub(
        r"\\(?:text|mathrm|textbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|\b(?:sin|cos|tan|log|ln|sqrt|pi|and|or|exp|gcd|max|min)\b",
        " ",
        text,
    )
    return (
        bool(re.search(r"[0-9=<>]|\\", text))
        and not re.search(r"[^\W\d_]{2,}|[\u3040-\u9fff\uac00-\ud7af]", stripped)
        and not re.search(r"[\[\]].*[\[\]].*[\[\]]", text)
    )


def _touching(text: str, number: re.Match[str]) -> str | None:
    """The whole run that a number is part of (``9π``, ``2^10``, ``2√3``), or None where it stands alone."""
    before = text[max(0, number.start() - 12) : number.start()]
    if not (
        _TOUCHED.match(text, number.end()) or re.search(r"(?:√|\^|[0-9a-z)]\*\*|\\sqrt\{?|sqrt\(?|_\{?)\s?\Z", before)
    ):
        return None
    for run in _RUN_CHARS.finditer(text, max(0, number.start() - 120)):
        if run.start() <= number.start() < run.end():
            return run[0].strip("*`.,;:!?()[]$") or None
    return None
