"""Which rows can be trained on: gold extracted, text turned to ids once, the rest rejected with a reason each."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig
from grpo_core.prompts.gold import NotTextError, as_text, extract_gold
from grpo_core.prompts.sources import SourceRow
from grpo_core.schemas import PROMPTS, REJECTED, Progress, no_progress
from grpo_core.seeding import hash64

REASONS = ("not_text", "empty_prompt", "no_gold", "duplicate", "conflicting_gold", "too_long")
"""Why a row is rejected, in the order in which it is asked."""

_BATCH = 256
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class FilteredPrompts:
    """``train`` and ``eval`` (``schemas.PROMPTS``) share no prompt; every other row is in ``rejected`` with its reason.

    All three in the order of the source. ``counts`` holds the rejected rows by reason, only reasons that occur.
    """

    train: pa.Table
    eval: pa.Table
    rejected: pa.Table
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Candidate:
    index: int
    prompt_id: str
    question: str
    gold: str


def prompt_identity(question: str) -> str:
    """The id of a question: 16 hex digits of sha256 over its stripped text. No template enters it."""
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


def filter_prompts(
    rows: Iterable[SourceRow], config: DataConfig, tokenizer: Any, seed: int, progress: Progress = no_progress
) -> FilteredPrompts:
    """Reject what can't be trained on, turn the rest to ids, and hold ``config.eval_size`` prompts out.

    Reasons: ``not_text`` (a list or a record in the prompt's or the gold's place), ``empty_prompt``, ``no_gold``,
    ``duplicate`` (an earlier row has the same prompt and gold), ``conflicting_gold`` (the same prompt, another gold;
    the first stays), ``too_long`` (over ``config.max_prompt_tokens``, chat template included).

    Held out are the prompts of the smallest ``hash64(seed, "eval", prompt_id)``: adding rows to the source moves a
    prompt into or out of the held-out set only where a new one takes its place.

    Args:
        tokenizer: a transformers tokenizer.
        seed: the run's seed.
        progress: called with prompts turned to ids so far, and how many there are.

    Raises:
        UserError: no prompt or too few are left, or the chat template refuses the messages.
    """
    rejected: list[dict[str, Any]] = []
    candidates = _readable(rows, config, rejected)
    kept: list[dict[str, Any]] = []
    progress(0, len(candidates))
    for start in range(0, len(candidates), _BATCH):
        batch = candidates[start : start + _BATCH]
        prompts = [config.prompt_template.format(prompt=candidate.question) for candidate in batch]
        for candidate, prompt, ids in zip(batch, prompts, prompt_token_ids(prompts, config, tokenizer), strict=True):
            if len(ids) > config.max_prompt_tokens:
                detail = f"{len(ids)} tokens, at most {config.max_prompt_tokens} allowed"
                rejected.append(
                    _rejection(config, candidate.index, candidate.question, candidate.gold, "too_long", detail)
                )
                continue
            kept.append(
                {
                    "prompt_id": candidate.prompt_id,
                    "source": config.source,
                    "source_row": candidate.index,
                    "prompt": prompt,
                    "gold": candidate.gold,
                    "prompt_ids": ids,
                    "solution": None,
                    "extra": None,
                    "reward": None,
                    "order": None,
                }
            )
        progress(start + len(batch), len(candidates))
    rejected.sort(key=lambda row: row["source_row"])
    found = Counter(row["reason"] for row in rejected)
    counts = {reason: found[reason] for reason in REASONS if found[reason]}
    held_out = _held_out([row["prompt_id"] for row in kept], config, counts, seed)
    return FilteredPrompts(
        train=pa.Table.from_pylist([row for row in kept if row["prompt_id"] not in held_out], schema=PROMPTS),
        eval=pa.Table.from_pylist([row for row in kept if row["prompt_id"] in held_out], schema=PROMPTS),
        rejected=pa.Table.from_pylist(rejected, schema=REJECTED),
        counts=counts,
    )


def prompt_token_ids(prompts: Sequence[str], config: DataConfig, tokenizer: Any) -> list[list[int]]:
    """The ids that the model is given for each user's turn: the chat template with its generation prompt, or bare text.

    Raises:
        UserError: there is a system prompt and no chat template, or the template refuses the messages.
    """
    if not (config.chat_template and tokenizer.chat_template):
        if config.system_prompt:
            raise UserError(
                "data.system_prompt is set, but no chat template is in use (data.chat_template is false or the "
                "tokenizer has none); put the text into data.prompt_template."
            )
        # verbose: it warns of texts beyond the model's length, which are rejected by data.max_prompt_tokens.
        return [list(ids) for ids in tokenizer(list(prompts), verbose=False)["input_ids"]]
    from jinja2 import TemplateError

    system = [{"role": "system", "content": config.system_prompt}] if config.system_prompt else []
    conversations = [[*system, {"role": "user", "content": prompt}] for prompt in prompts]
    try:
        encoded: list[list[int]] = tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except TemplateError as error:
        raise UserError(
            f"The tokenizer's chat template refuses the prompts ({error}); unset data.system_prompt or set "
            "data.chat_template to false."
        ) from error
    return encoded


def _readable(rows: Iterable[SourceRow], config: DataConfig, rejected: list[dict[str, Any]]) -> list[_Candidate]:
    """The rows that have a prompt of their own and a gold; the others are added to ``rejected``."""
    first: dict[str, _Candidate] = {}
    for row in rows:
        question, cell, reason, detail = _texts(row)
        gold = extract_gold(cell, config.gold_format) if cell else None
        if not reason and gold is None:
            reason, detail = "no_gold", _why_no_gold(cell, config)
        if reason or question is None or gold is None:
            rejected.append(_rejection(config, row.index, question, gold or cell, reason, detail))
            continue
        candidate = _Candidate(row.index, prompt_identity(question), question, gold)
        earlier = first.setdefault(candidate.prompt_id, candidate)
        if earlier is not candidate:
            same = earlier.gold == gold
            reason = "duplicate" if same else "conflicting_gold"
            detail = f"same prompt as row {earlier.index}" + ("" if same else f", whose gold is {_shown(earlier.gold)}")
            rejected.append(_rejection(config, row.index, question, gold, reason, detail))
    return list(first.values())


def _texts(row: SourceRow) -> tuple[str | None, str | None, str, str]:
    """Prompt and gold cell as text, then the reason and its detail, blank when the prompt can be used."""
    texts: list[str | None] = []
    reason = detail = ""
    for place, value in (("prompt", row.prompt), ("gold", row.gold)):
        try:
            texts.append(as_text(value))
        except NotTextError as error:
            texts.append(None)
            reason, detail = "not_text", detail or f"the {place} is {error}"
    question, cell = texts
    if not reason and not question:
        reason, detail = "empty_prompt", "null" if question is None else "blank"
    return question, cell, reason, detail


def _why_no_gold(cell: str | None, config: DataConfig) -> str:
    if not cell:
        return "null" if cell is None else "blank"
    return f"no {config.gold_format} gold in {_shown(cell)}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"…{text[-_SHOWN_CHARACTERS:]}")


def _rejection(
    config: DataConfig, index: int, prompt: str | None, gold: str | None, reason: str, detail: str
) -> dict[str, Any]:
    return {
        "source": config.source,
        "source_row": index,
        "prompt": prompt,
        "gold": gold,
        "reason": reason,
        "detail": detail,
    }


def _held_out(prompt_ids: list[str], config: DataConfig, counts: dict[str, int], seed: int) -> frozenset[str]:
    why = f" (rejected: {', '.join(f'{reason} {count}' for reason, count in counts.items())})" if counts else ""
    if not prompt_ids:
        raise UserError(
            f"No prompt of data.source '{config.source}' is left after filtering{why}; check data.prompt_column, "
            "data.gold_column, data.gold_format and data.max_prompt_tokens."
        )
    if len(prompt_ids) <= config.eval_size:
        raise UserError(
            f"data.eval_size is {config.eval_size}, but data.source '{config.source}' has only {len(prompt_ids)} "
            f"prompts left after filtering{why}; lower it or bring more data."
        )
    return frozenset(sorted(prompt_ids, key=lambda prompt_id: hash64(seed, "eval", prompt_id))[: config.eval_size])
