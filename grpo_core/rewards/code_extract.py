"""Finds the code in a response, without parsing it: text of a model is compiled in a sandbox only."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

Sources = tuple[str, ...]
"""Parts of one program, run one after the other in one namespace."""

_PYTHON = ("python", "python3", "py", "py3", "ipython", "python2")
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_STATEMENT = re.compile(
    r"[ \t]*+(@\w|(async )?def \w+\s*\(|class \w+\s*[:(]|import \w|from [\w.]+ import |return\b|raise\b|yield\b"
    r"|pass\s*$|assert |try:|with .+:\s*$|(if|elif|while) .+:|else:|for .+ in .+:|print\("
    r"|[\w.\[\]'\", ]+ ?([-+*/%&|^]|//|\*\*)?= ?\S|[\w.]+\(.*\)\s*$)"
)
_START = re.compile(r"@\w|(async )?def \w+\s*\(|class \w+\s*[:(]|import \w|from [\w.]+ import ")
_MARKED = re.compile(
    r"\[(?:BEGIN|PYTHON|ANSWER)\][ \t]*\n?(?P<code>.*?)(?:\[(?:DONE|/PYTHON|/ANSWER)\]|\Z)"
    r"|<(?P<tag>answer|code|solution)>[ \t]*\n?(?P<tagged>.*?)(?:</(?P=tag)>|\Z)",
    re.DOTALL,
)
_BROUGHT = re.compile(
    r"^(?:(?:(?:async +)?def|class) +(?P<defined>\w+)|(?P<constant>[A-Z][A-Z0-9_]+) *=(?!=)"
    r"|(?:from +[\w.]+ +)?import +(?P<imported>.+))",
    re.MULTILINE,
)
_LARGEST = 200_000  # characters of a response that are looked at
_PARTS = 10  # earlier blocks, and names of each, that an answer given in parts may need
_NAMES = 50
_CLOSINGS = 4
_ENDINGS = 12


@dataclass(frozen=True, slots=True)
class _Block:
    """A fenced block. ``texts``: its text up to the closing fence, then up to later ones that might be meant."""

    language: str
    texts: tuple[str, ...]


def alternatives(response: str, entry_point: str = "", prompt: str = "", preamble: str = "") -> list[Sources]:
    """What the code of a response may be, the likeliest first: whatever first compiles is meant. Empty without code.

    The last fenced block counts, the last with the entry point where one has it; else the text as a whole, or the part
    of it that looks like code. Where the entry point is defined nowhere, the text goes on after the ``prompt``.

    Args:
        response: the text of a model; what stands before ``</think>`` is left aside where code follows.
        entry_point: the name that has to be defined; may be empty.
        prompt: Python source that ends in the function to be completed; may be empty.
        preamble: what of that runs by itself, its imports and helpers; put before code that brings the whole function.
    """
    text = response.replace("\r\n", "\n").replace("\r", "\n")[-_LARGEST:]
    answer = text.rpartition("</think>")[2]
    return next((found for part in (answer, text) if (found := _found(part, entry_point, prompt, preamble))), [])


def _found(text: str, entry_point: str, prompt: str, preamble: str) -> list[Sources]:
    blocks = list(_blocks(text))
    if blocks:
        filled = [block for block in blocks if block.texts[0].strip()]
        chosen = _chosen(filled, entry_point)
        texts = [] if chosen is None else [*chosen.texts, textwrap.dedent(chosen.texts[0])]
    else:
        marked = [match["code"] or match["tagged"] or "" for match in _MARKED.finditer(text)]
        texts = [code for part in (*marked[-1:], text) for code in _unfenced(part)]
    whole = [code for code in texts if not entry_point or defines(code, entry_point)]
    if whole or not prompt:
        before = (preamble,) if preamble else ()
        helpers = _helpers(blocks, whole or texts, entry_point)
        return _unique([(*before, *more, code) for more in (helpers, ()) for code in whole or texts])
    completed = texts if blocks else [text]
    bodies = [code for code in completed if any(map(_STATEMENT.match, code.split("\n")))]
    return _unique([(source,) for body in bodies for source in _completed(prompt, body)])


def defines(code: str, name: str) -> bool:
    """Whether code seems to define a function, class, method or variable of that name."""
    name = re.escape(name)
    pattern = rf"^[ \t]*(async +)?(def|class) +{name}\b|^{name}\s*(:[^=\n]*)?=(?!=)|^(from|import) .*\b{name}\b"
    return re.search(pattern, code, re.MULTILINE) is not None


def _chosen(blocks: list[_Block], entry_point: str) -> _Block | None:
    tagged = [block for block in blocks if block.language in _PYTHON]
    untagged = [block for block in blocks if not block.language]
    if entry_point:
        able = [block for block in (tagged + untagged) if defines(block.texts[0], entry_point)]
        able.sort(key=blocks.index)
        if able:
            return able[-1]
    return next((group[-1] for group in (tagged, untagged, blocks) if group), None)


def _helpers(blocks: list[_Block], texts: list[str], entry_point: str) -> Sources:
    """Earlier blocks that bring what the chosen one uses and does not define: an answer given in parts."""
    found: list[str] = []
    needed = texts[0] if texts else ""
    before = [block.texts[0] for block in blocks if block.language in ("", *_PYTHON)]
    if needed in before:
        before = before[: before.index(needed)]
    for code in reversed(before[-_PARTS:]):
        names = {word for brought in _BROUGHT.finditer(code) for word in _words(brought[brought.lastgroup or 0])}
        used = sorted((names & _words(needed)) - {"as"})[:_NAMES]
        if entry_point not in names and not all(defines(needed, name) for name in used):
            found.insert(0, code)
            needed = f"{code}\n{needed}"
    return tuple(found)


def _words(code: str) -> set[str]:
    return set(re.findall(r"\w+", code.partition("#")[0] if "\n" not in code else code))


def _blocks(text: str) -> Iterator[_Block]:
    """Fenced blocks; one that is not closed, as when the token limit cut it, goes to the end."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        indent, mark, info = opening.groups()
        closing = re.compile(rf"^[ \t]{{0,{len(indent) + 3}}}{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$")
        closed = (end for end in range(number, len(lines)) if closing.match(lines[end]))
        ends = list(islice(closed, _CLOSINGS)) or [len(lines)]
        bodies = ("\n".join(line.removeprefix(indent) for line in lines[number:end]) for end in ends)
        yield _Block(re.split(r"[\s,:]", info.strip(" \t{.").lower())[0].rstrip("}"), tuple(bodies))
        number = ends[0] + 1


def _unfenced(text: str) -> Iterator[str]:
    """The whole text, then from its first line of code to its end, then without more and more of what stands below."""
    if _STATEMENT.match(text.lstrip("\n")):
        yield text
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if _START.match(line)), None)
    if start is None:
        return
    ends = [n for n in range(start + 1, len(lines)) if lines[n].strip() and not lines[n][0].isspace()]
    for end in [len(lines), *reversed(ends[-_ENDINGS:]), *ends[:1]]:
        yield "\n".join(lines[start:end])


def _completed(prompt: str, body: str) -> Iterator[str]:
    """The prompt and the body of its function, indented as it came or as it should be, with what follows or not."""
    base = prompt.rstrip() + "\n"
    lines = body.strip("\n").split("\n")
    indented = textwrap.indent(textwrap.dedent("\n".join(lines)), "    ").split("\n")
    for shape in (lines, [f"    {lines[0].lstrip()}", *lines[1:]], indented):
        yield base + "\n".join(shape)
        end = next((n for n, line in enumerate(shape) if n and line.strip() and not line[0].isspace()), None)
        if end is not None:
            yield base + "\n".join(shape[:end])


def _unique(found: list[Sources]) -> list[Sources]:
    return list(dict.fromkeys(sources for sources in found if sources[-1].strip()))
