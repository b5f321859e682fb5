"""The page itself: one HTML file that needs nothing else, with everything a model or a person wrote shown as text.

jinja2 escapes every value; the page's own policy forbids scripts and whatever would have to be fetched; invisible
characters and those that turn the direction of writing are spelled out.
"""

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_KEEP = 900  # characters of a long text, two thirds from its beginning
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def render(page: dict[str, Any]) -> bytes:
    """The page as UTF-8; equal input gives equal bytes. ``page`` is what ``page.html.j2`` reads."""
    environment = Environment(
        loader=PackageLoader("grpo_core.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "number": number}
    return environment.get_template("page.html.j2").render(**page).encode()


def shown(text: object, keep: int = _KEEP) -> str:
    """A text as it may stand on a page: not too long, and without characters that show as something else."""
    whole = str(text)
    left_out = len(whole) - keep
    if left_out > keep // 10:  # so little is not worth a word
        head, tail = whole[: keep * 2 // 3], whole[-(keep // 3) :]
        whole = f"{head}\n[… {left_out:,} characters left out …]\n{tail}"
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found.group()):04x}", whole)


def number(value: float | None, digits: int = 3) -> str:
    """A figure without trailing zeros, and a word where there is none."""
    return "none" if value is None else f"{value + 0.0:.{digits}f}".rstrip("0").rstrip(".")
