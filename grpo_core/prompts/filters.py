"""Which rows can be trained on: a mix of sources, read, filtered and split; what is refused is kept with its reason."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.prompts.contamination import EvaluationIndex
from grpo_core.prompts.duplicates import NearDuplicates
from grpo_core.prompts.filters_exact import one_each
from grpo_core.prompts.filters_rows import Candidate, Rejections, Rows, candidates, prompt_identity, row_name
from grpo_core.prompts.filters_text import Tokens, tokens_of
from grpo_core.prompts.filters_tokens import prompt_token_ids
from grpo_core.prompts.gold_check import GoldCheck
from grpo_core.prompts.kinds import is_multiple_choice, is_proof
from grpo_core.prompts.language import foreign
from grpo_core.schemas import PROMPTS, Progress, no_progress
from grpo_core.seeding import hash64

__all__ = ["REASONS", "FilteredPrompts", "Known", "filter_prompts", "prompt_identity", "prompt_token_ids"]

REASONS = (
    "not_text",
    "empty_prompt",
    "no_gold",
    "proof",
    "multiple_choice",
    "language",
    "conflicting_gold",
    "duplicate",
    "too_long",
    "gold_unverified",
    "gold_disagrees",
    "ambiguous_gold",
    "near_duplicate",
    "contaminated",
)
"""Why a row is refused, in the order in which it is asked."""

_BATCH = 256


@dataclass(frozen=True, slots=True)
class FilteredPrompts:
    """``train`` and ``eval`` (``schemas.PROMPTS``) share no prompt; every other row is in ``rejected`` with its reason.

    All three in the order of the sources, training ones first. ``counts`` holds the refused rows by reason, only
    reasons that occur. ``golds`` tells of how many rows that passed it the check of golds had its say (``checked``),
    of how many it had none, because their reward compares with no gold or the check is off (``unchecked``), and for
    how many it failed itself, so that nothing is known of them (``failed``).
    """

    train: pa.Table
    eval: pa.Table
    rejected: pa.Table
    counts: dict[str, int]
    golds: dict[str, int]


@dataclass(frozen=True, slots=True)
class Known:
    """The prompts that a run has already (``schemas.PROMPTS``), when more are added to it."""

    train: pa.Table
    eval: pa.Table


@dataclass(frozen=True, slots=True)
class _KnownPrompt:
    name: str
    prompt_id: str
    gold: str
    tokens: Tokens


def filter_prompts(
    sources: Sequence[Rows],
    eval_sources: Sequence[Rows],
    config: DataConfig,
    tokenizer: Any,
    seed: int,
    progress: Progress = no_progress,
    check: GoldCheck | None = None,
    known: Known | None = None,
) -> FilteredPrompts:
    """Refuse what can't be trained on, turn the rest to ids, and keep evaluation and training apart.

    A row is refused for the first of ``REASONS`` that holds: ``not_text`` (a list or a record in the prompt's or the
    gold's place), ``empty_prompt``, ``no_gold``, ``proof`` and ``multiple_choice`` (where ``config.filters`` drops
    them), ``language``, ``conflicting_gold`` (rows of one prompt whose golds are different answers: nobody knows which
    is right, so that all of them go), ``duplicate`` (an earlier row has the same prompt and gold), ``too_long`` (over
    ``config.max_prompt_tokens``, chat template included), ``gold_unverified``, ``gold_disagrees`` and
    ``ambiguous_gold`` (see ``gold_check``), ``near_duplicate`` (of an earlier training row), ``contaminated`` (a
    training row that an evaluation prompt is equal to, near to, or copied into).

    All usable rows of ``eval_sources`` are held out, and ``config.eval_size`` training prompts, those of the smallest
    ``hash64(seed, "eval", prompt_id)``: adding rows to a source moves a prompt into or out of the held-out set only
    where a new one takes its place. The evaluation set wins: a training row that gives an evaluation prompt away is
    refused.

    Args:
        sources: the training rows, source by source; of doubled rows the first stays.
        tokenizer: a transformers tokenizer.
        seed: the run's seed.
        progress: called with prompts turned to ids so far, and how many there are.
        check: checks golds and compares them; None: no gold is checked, and golds are compared as text.
        known: what the run has already: its prompts count as earlier rows, and no further one is held out of
            ``sources``. A new evaluation prompt that training may have seen is refused.

    Raises:
        UserError: no prompt of a source is left or too few are, the chat template refuses the messages, or the reward
            that is to check golds can't run.
    """
    filters, rejections = config.filters, Rejections()
    everything = [*((rows, False) for rows in sources), *((rows, True) for rows in eval_sources)]
    read = [
        row for place, (rows, is_eval) in enumerate(everything) for row in candidates(rows, place, is_eval, rejections)
    ]
    known_train = _known_prompts(known.train, config) if known else []
    known_eval = _known_prompts(known.eval, config) if known else []
    read = [row for row in read if not _refused_by_kind(row, config, rejections)]
    train, held = (
        one_each(
            [row for row in read if row.is_eval is is_eval],
            {prompt.prompt_id: (prompt.name, prompt.gold) for prompt in (known_eval if is_eval else known_train)},
            check,
            rejections,
        )
        for is_eval in (False, True)
    )
    usable = _short_enough([*train, *held], config, tokenizer, rejections, progress)
    golds: Counter[str] = Counter()
    usable = _checked(usable, check if filters.gold_check == "auto" else None, rejections, golds)
    train, held = ([row for row in usable if row.is_eval is is_eval] for is_eval in (False, True))
    if filters.near_duplicates is not None:
        train = _unlike(train, known_train, filters.near_duplicates, rejections)
    held = _unseen(held, known_train, config, rejections)
    size = 0 if known else config.eval_size
    train, split_off = _parted(train, [*held, *known_eval], size, config, rejections, seed)
    table = rejections.table()
    counts = _counts(table)
    _refuse_empty([source for source, _ in sources], [*train, *split_off], "source", counts)
    _refuse_empty([source for source, _ in eval_sources], held, "eval_sources", counts)
    return FilteredPrompts(
        train=_table(train, config),
        eval=_table([*split_off, *held], config),
        rejected=table,
        counts=counts,
        golds={kind: golds[kind] for kind in ("checked", "unchecked", "failed")},
    )


def _refused_by_kind(row: Candidate, config: DataConfig, rejections: Rejections) -> bool:
    filters = config.filters
    if filters.proofs == "drop" and is_proof(row.question):
        rejections.add(row, "proof", "it asks for a proof and no value")
    elif filters.multiple_choice == "drop" and is_multiple_choice(row.question):
        rejections.add(row, "multiple_choice", "it has lettered choices")
    elif filters.languages is not None and (found := foreign(row.question, filters.languages)):
        allowed = " or ".join(sorted(filters.languages))
        rejections.add(
            row,
            "language",
            f"it is in {found.language}; that it is in {allowed} has probability {found.probability:.1e}",
        )
    else:
        return False
    return True


def _short_enough(
    rows: list[Candidate], config: DataConfig, tokenizer: Any, rejections: Rejections, progress: Progress
) -> list[Candidate]:
    kept: list[Candidate] = []
    progress(0, len(rows))
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        prompts = [_templated(row, config) for row in batch]
        for row, ids in zip(batch, prompt_token_ids(prompts, config, tokenizer), strict=True):
            if len(ids) > config.max_prompt_tokens:
                rejections.add(row, "too_long", f"{len(ids)} tokens, at most {config.max_prompt_tokens} allowed")
            else:
                kept.append(replace(row, ids=ids))
        progress(start + len(batch), len(rows))
    return kept


def _checked(
    rows: list[Candidate], check: GoldCheck | None, rejections: Rejections, golds: Counter[str]
) -> list[Candidate]:
    if check is None:
        golds["unchecked"] += len(rows)
        return rows
    found = check.check([row.to_check for row in rows])
    kept = []
    for row, finding in zip(rows, found, strict=True):
        if finding.reason:
            rejections.add(row, finding.reason, finding.detail)
            continue
        golds["failed" if finding.failed else "checked" if finding.checked else "unchecked"] += 1
        kept.append(row)
    return kept


def _unlike(
    rows: list[Candidate], known: list[_KnownPrompt], threshold: float, rejections: Rejections
) -> list[Candidate]:
    index = NearDuplicates(threshold)
    for prompt in known:
        index.add(prompt.name, prompt.tokens, prompt.gold)
    kept = []
    for row in rows:
        found = index.find(row.tokens, row.gold)
        if found is None:
            index.add(row.name, row.tokens, row.gold)
            kept.append(row)
        else:
            rejections.add(row, "near_duplicate", f"like {found.name}: {found.measure} {found.similarity:.2f}")
    return kept


def _parted(
    rows: list[Candidate],
    evaluation: Sequence[Candidate | _KnownPrompt],
    size: int,
    config: DataConfig,
    rejections: Rejections,
    seed: int,
) -> tuple[list[Candidate], list[Candidate]]:
    """The rows to train on and those to hold out, ``size`` of them; none of either gives an evaluation prompt away."""
    guard = _Guard(evaluation, config, rejections)
    ordered = sorted(rows, key=lambda row: hash64(seed, "eval", row.prompt_id)) if size else []
    held_out: list[Candidate] = []
    asked: set[int] = set()
    for row in ordered:
        if len(held_out) == size:
            break
        asked.add(id(row))
        if guard.passes(row):
            held_out.append(row)
    for row in held_out:
        guard.add(row)
    train = [row for row in rows if id(row) not in asked and guard.passes(row)]
    if size and not train and held_out:
        names = ", ".join(f"'{source.label}'" for source in config.mix)
        raise UserError(
            f"data.eval_size is {size}, but data.source {names} has only {len(held_out)} prompts left after filtering"
            f"{_told(_counts(rejections.table()))}; lower it or bring more data."
        )
    return train, held_out


class _Guard:
    """Keeps what gives evaluation prompts away out of training."""

    def __init__(
        self, evaluation: Sequence[Candidate | _KnownPrompt], config: DataConfig, rejections: Rejections
    ) -> None:
        self._index = _index_of(evaluation, config)
        self._same = {prompt.prompt_id: prompt.name for prompt in evaluation}
        self._reads_solutions = config.filters.contamination is not None
        self._rejections = rejections

    def add(self, row: Candidate) -> None:
        """One more evaluation prompt."""
        self._index.add(row.name, row.tokens, row.gold)
        self._same[row.prompt_id] = row.name

    def passes(self, row: Candidate) -> bool:
        """Whether a training row gives none away; one that does is refused."""
        if row.prompt_id in self._same:
            name = self._same[row.prompt_id]
            self._rejections.add(row, "contaminated", f"same prompt as {name}, which is for evaluation")
            return False
        solution = tokens_of(row.solution) if row.solution and self._reads_solutions else None
        found = self._index.find(row.tokens, row.gold, solution)
        if found is not None:
            detail = f"gives {found.name} away, which is for evaluation: {found.why}"
            self._rejections.add(row, "contaminated", detail)
        return found is None


def _unseen(
    held: list[Candidate], known: list[_KnownPrompt], config: DataConfig, rejections: Rejections
) -> list[Candidate]:
    """The new evaluation rows that no training prompt of the run gives away."""
    if not known or not held:
        return held
    index, same = _index_of(held, config), {row.prompt_id: row.name for row in held}
    seen: dict[str, str] = {}
    for prompt in known:
        found = index.find(prompt.tokens, prompt.gold)
        name = same.get(prompt.prompt_id) or (found.name if found else None)
        if name is not None:
            seen.setdefault(name, prompt.name)
    for row in held:
        if row.name in seen:
            rejections.add(row, "contaminated", f"given away by {seen[row.name]}, which the run may have trained on")
    return [row for row in held if row.name not in seen]


def _index_of(evaluation: Sequence[Candidate | _KnownPrompt], config: DataConfig) -> EvaluationIndex:
    filters = config.filters
    index = EvaluationIndex(filters.contamination_ngram, filters.contamination, filters.near_duplicates)
    for prompt in evaluation:
        index.add(prompt.name, prompt.tokens, prompt.gold)
    return index


def _known_prompts(table: pa.Table, config: DataConfig) -> list[_KnownPrompt]:
    before, _, after = config.prompt_template.format(prompt="\x00").partition("\x00")
    columns = [table[name].to_pylist() for name in ("source", "source_row", "prompt_id", "gold", "prompt")]
    return [
        _KnownPrompt(
            row_name(source, index), identity, gold, tokens_of(prompt.removeprefix(before).removesuffix(after))
        )
        for source, index, identity, gold, prompt in zip(*columns, strict=True)
    ]


def _refuse_empty(sources: list[SourceConfig], kept: list[Candidate], key: str, counts: dict[str, int]) -> None:
    filled = {row.source.label for row in kept}
    for source in sources:
        if source.label not in filled:
            raise UserError(
                f"No prompt of data.{key} '{source.label}' is left after filtering{_told(counts)}; "
                "check data.prompt_column, data.gold_column, data.gold_format, data.max_prompt_tokens and data.filters."
            )


def _told(counts: dict[str, int]) -> str:
    return f" (rejected: {', '.join(f'{reason} {count}' for reason, count in counts.items())})" if counts else ""


def _counts(rejected: pa.Table) -> dict[str, int]:
    found = Counter(rejected["reason"].to_pylist())
    return {reason: found[reason] for reason in REASONS if found[reason]}


def _templated(row: Candidate, config: DataConfig) -> str:
    return config.prompt_template.format(prompt=row.question)


def _table(rows: list[Candidate], config: DataConfig) -> pa.Table:
    ordered = sorted(rows, key=lambda row: (row.place, row.index))
    return pa.Table.from_pylist([row.kept(_templated(row, config)) for row in ordered], schema=PROMPTS)
