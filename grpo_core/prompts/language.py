"""The language of a prompt, by py3langid (Lui and Baldwin 2012): told only where the evidence is clear."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from grpo_core.errors import UserError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_NO_PROSE = re.compile(
    r"```.*?(?:```|\Z)|\[asy\].*?(?:\[/asy\]|\Z)|\$\$.*?\$\$|\$[^$]*\$|\\\[.*?\\\]|\\\(.*?\\\)|\\begin\{.*?\\end\{\w+\*?\}"
    r"|\\[A-Za-z]+|https?://\S+|^\s*(?:>>>|def |import |from |class |assert |return |#).*?$"
    r"|[A-Za-z]*[_\d][A-Za-z_\d]*|[A-Za-z_]+\([^()\n]*\)",
    re.DOTALL | re.MULTILINE,
)
_OTHER_SCRIPT = re.compile(r"[^\W\d_a-zA-Z\u00c0-\u024f]")
_LETTER = re.compile(r"[^\W\d_]")
_LEAST_LETTERS = 24  # of a text in Latin letters; less is too short to tell
_LEAST_OTHER = 4  # letters of a text in another script
_HARDLY = 0.01
_LIKELY = 0.5
_NO_LANGUAGE = "zxx"


@dataclass(frozen=True, slots=True)
class Foreign:
    """The language that a prompt most probably is in, and the probability that it is in an allowed one."""

    language: str
    probability: float


def foreign(prompt: str, languages: Collection[str]) -> Foreign | None:
    """What a prompt is written in, where that is clearly none of ``languages`` (ISO 639-1); else None.

    Formulas and code don't count. What is left must be a sentence in Latin letters, or some words mostly in another
    script, and the probability of all allowed languages together below 1 %.

    Raises:
        UserError: one of ``languages`` is no code that py3langid knows.
    """
    identifier = _identifier()
    if unknown := sorted(set(languages) - set(identifier.labels)):
        raise UserError(
            f"data.filters.language: '{unknown[0]}' is no ISO 639-1 code that can be told apart; use one such as en."
        )
    prose = _NO_PROSE.sub(" ", prompt)
    letters, others = len(_LETTER.findall(prose)), len(_OTHER_SCRIPT.findall(prose))
    if letters < (_LEAST_OTHER if 2 * others > letters else _LEAST_LETTERS):
        return None
    ranked = [found for found in identifier.rank(" ".join(prose.split())) if found[0] != _NO_LANGUAGE]
    probability = float(sum(share for language, share in ranked if language in languages))
    language, share = ranked[0]
    return Foreign(str(language), probability) if probability < _HARDLY and share >= _LIKELY else None


@lru_cache(1)
def _identifier() -> "LanguageIdentifier":
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
