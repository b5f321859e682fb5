r"""Unicode made ASCII and LaTeX: one spelling for digits, fractions, roots, signs, and Chinese punctuation.

NFKC does most of it (full-width forms, superscripts, ``¾``); what it cannot know as mathematics stands in tables here.
A look-alike letter of another script stays what it is: a Cyrillic ``О`` is no zero.
"""

import re
import unicodedata

_INVISIBLE = dict.fromkeys(
    [0, 0xAD, 0x34F, 0x61C, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)]
)
_SIGNS = {
    "−": "-", "﹣": "-", "－": "-", "‐": "-", "‑": "-", "–": "-", "—": "-", "＋": "+", "﹢": "+",
    "×": r"\times ", "✕": r"\times ", "✖": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "∗": "*",
    "÷": r"\div ", "∕": "/", "⁄": "/", "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ", "⩽": r"\le ", "≦": r"\le ",
    "≥": r"\ge ", "⩾": r"\ge ", "≧": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≅": r"\approx ", "≃": r"\approx ",
    "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ", "∞": r"\infty ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "℃": r"^\circ C", "℉": r"^\circ F", "′": "'", "’": "'",
    "“": '"', "”": '"', "…": r"\ldots ", "⋯": r"\ldots ", "∶": ":", "：": ":", "，": ",", "、": ", ", "；": "; ",
    "。": ". ", "．": ".", "｡": ". ", "％": "%", "﹪": "%", "٪": "%", "٫": ".", "٬": ",", "【": "[", "】": "]",
    "〔": "[", "〕": "]", "「": "", "」": "", "『": "", "』": "", "《": "", "》": "",
    "⟨": r"\langle ", "⟩": r"\rangle ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ",
    "¬": r"\neg ", "∧": r"\land ", "∨": r"\lor ", "→": r"\to ", "⇒": r"\Rightarrow ",
    "√": r"\sqrt ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]", "\u2003": " ", "\u3000": " ", "\u00a0": " ", "\u202f": " ",
    "´": "'", "ı": "i", "ℓ": "l", "µ": "\u03bc", "￥": "¥", "＄": r"\$", "\u2571": "/", "▪": "", "•": "",
}  # fmt: skip
_GREEK = {
    chr(code): "\\" + name + " "
    for first, names in (
        (0x3B1, "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma "
                "sigma tau upsilon phi chi psi omega"),
        (0x391, "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho _ Sigma "
                "Tau Upsilon Phi Chi Psi Omega"),
    )
    for code, name in enumerate(names.split(), start=first)
}  # fmt: skip
_TABLE = str.maketrans({**_SIGNS, **_GREEK, "ϕ": r"\phi ", "ϑ": r"\theta ", "ϵ": r"\epsilon ", "∂": r"\partial "})
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱᵃᵇᶜᵈᵉᵏᵐᵖᵗˣʸᶻ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₐₑₓₙₖₘᵢⱼₚₜ"
_RAISED_RUN = re.compile(f"[{_RAISED}]+")
_LOWERED_RUN = re.compile(f"[{_LOWERED}]+")
_VULGAR = re.compile("(?P<whole>[0-9]?)[ ]?(?P<sign>[¼-¾⅐-⅞↉])")
_ROOT_OF_RUN = re.compile(r"\\sqrt(?P<index>\[[34]\])?\s*(?P<of>[0-9]+(?:\.[0-9]+)?|[A-Za-z](?![A-Za-z]))")
_ROOT_OF_GROUP = re.compile(r"\\sqrt(?P<index>\[[34]\])?\s*\((?P<of>[^()]*)\)")


def ascii_math(text: str) -> str:
    r"""``text`` with Unicode mathematics as ASCII and LaTeX: ``２√3`` is ``2\sqrt {3}``, ``x²`` is ``x^{2}``.

    Invisible and direction-changing characters are dropped; letters of other scripts stay.
    """
    if text.isascii() and "\0" not in text:
        return text
    text = text.translate(_INVISIBLE)
    text = _VULGAR.sub(_vulgar, text)
    text = _RAISED_RUN.sub(lambda run: f"^{{{unicodedata.normalize('NFKC', run[0]).replace(chr(0x2212), '-')}}}", text)
    text = _LOWERED_RUN.sub(lambda run: f"_{{{unicodedata.normalize('NFKC', run[0]).replace(chr(0x2212), '-')}}}", text)
    rooted = "√" in text or "∛" in text or "∜" in text
    text = "".join(map(_one_digit, unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)))
    if rooted:  # LaTeX takes one digit as the radicand where a reader of the sign takes the number
        text = _ROOT_OF_RUN.sub(r"\\sqrt\g<index>{\g<of>}", text)
        text = _ROOT_OF_GROUP.sub(r"\\sqrt\g<index>{\g<of>}", text)
    return text


def _one_digit(character: str) -> str:
    """Decimal digits of every script (Arabic-Indic, Devanagari, …) as ASCII."""
    if character.isascii():
        return character
    value = unicodedata.decimal(character, None)
    return character if value is None else str(value)


def _vulgar(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match["sign"]).partition("⁄")
    return f"{match['whole']}\\frac{{{top}}}{{{bottom}}}"
