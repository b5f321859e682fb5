"""Scores a JSONL file of responses, a batch at a time: ``grpo-rounds score FILE.jsonl``."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from grpo_core.errors import UserError
from grpo_core.rewards.score import RewardConfig, build_reward
from grpo_core.rewards.verdict import Sample, Score

_BATCH_ROWS = 256


def score_file(path: str | Path, config: RewardConfig) -> Iterator[tuple[str, Score]]:
    """Yields ``(id, score)`` for each row of ``path``, in order, holding one batch of rows at a time.

    A row is an object with ``response`` and ``gold`` (text, or a number for the gold) or, for code, ``tests``; and, if
    it likes, ``id`` and ``prompt``. The id falls back on the line number. All else goes to ``Sample.extra``. Blank
    lines are passed over.

    Raises:
        UserError: for a file that is not there, a line that is no JSON object, a key missing or of a wrong type.
    """
    reward = build_reward(config)
    rows = _rows(Path(path))
    while batch := list(islice(rows, _BATCH_ROWS)):
        for sample, score in zip(batch, reward(batch), strict=True):
            yield sample.id, score


def _rows(path: Path) -> Iterator[Sample]:
    try:
        lines = path.open("rb")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a JSONL file that is there.") from error
    with lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _sample(line, f"{path}:{number}", number)


def _sample(line: bytes, place: str, number: int) -> Sample:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place} is not valid JSON ({error}); write one JSON object on each line.") from error
    if not isinstance(row, dict):
        raise UserError(f"{place} is a JSON {type(row).__name__}; write one JSON object with response and gold.")
    if "response" not in row:
        raise UserError(f"{place} has no key 'response'; give every row a response.")
    if "gold" not in row and "tests" not in row:
        raise UserError(f"{place} has no key 'gold'; give every row a gold, or tests where the response is code.")
    response, gold, prompt = row["response"], row.get("gold", ""), row.get("prompt", "")
    if isinstance(gold, (int, float)) and not isinstance(gold, bool):
        gold = str(gold)
    for key, value in (("response", response), ("gold", gold), ("prompt", prompt)):
        if not isinstance(value, str):
            raise UserError(f"{place}: {key!r} is of the wrong type ({type(value).__name__}); write it as text.")
    extra = {key: value for key, value in row.items() if key not in ("id", "response", "gold", "prompt")}
    return Sample(str(row.get("id", number)), response, gold, prompt, extra=extra)
