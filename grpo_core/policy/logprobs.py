"""Logprobs and entropy of completions under a model, from few tokens and without ever holding all logits.

Shared prefix: one row ``[prompt | c1 | ... | cG]`` in which a completion sees itself and the prompt, with position ids
that restart behind the prompt for each. The prompt is computed once for its G completions. Attention passes over the
pairs that the row hides (prefix_attention.py), or hides them by a 4D float mask. The padded form, one row a completion,
gives the same numbers for models that can take neither (see form.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from grpo_core.policy.batching import PackedGroup
from grpo_core.policy.head import HeadMemory
from grpo_core.policy.prefix_attention import SplitRow, split_attention
from grpo_core.policy.token_logprobs import token_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_LOGITS = 2**26
"""Logits of one chunk of the language-model head: 256 MiB in float32, whatever the vocabulary."""


@dataclass(frozen=True, slots=True)
class LogprobForm:
    """How logprobs are computed for one model; ``grpo_core.policy.form.inspect_model`` finds out."""

    shared_prefix: bool  # False: padded
    chunked_head: bool  # False: through the model's own forward pass, full logits of a micro-batch's targets
    softcap: float | None  # logits become softcap * tanh(logits / softcap), as Gemma 2 does; chunked head only
    crossover: float  # row length in tokens at which attention costs as much as the weights; shapes masked rows
    by_parts: bool = False  # a shared row's hidden pairs are passed over, not masked

    @property
    def row_crossover(self) -> float | None:
        """What ``microbatches`` needs to know: hidden pairs that are passed over cost nothing at any length."""
        if not self.shared_prefix:
            return None
        return math.inf if self.by_parts else self.crossover


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Flat over all completion tokens: groups in order, completions in order, tokens in order; shape (T,), float32."""

    logprobs: Tensor  # nats, at the temperature asked for
    entropy: Tensor | None  # nats, of the distribution over the next token
    hidden: Tensor | None = None  # (T, H) last hidden states that predict each token, in the trunk's dtype


@dataclass(frozen=True, slots=True)
class _Inputs:
    arguments: dict[str, Any]  # of the model's forward pass over (B, L) ids
    places: Tensor  # (T,) index into (B * L) of the position that predicts each target
    targets: Tensor  # (T,)


def completion_logprobs(
    model: "PreTrainedModel",
    groups: Sequence[PackedGroup],
    temperature: float,
    want_entropy: bool,
    *,
    form: LogprobForm,
    entropy_gradient: bool = False,
    want_hidden: bool = False,
    memory: HeadMemory | None = None,
) -> Logprobs:
    """Logprob of every completion token given its prompt and what stands before it, of logits / temperature.

    Gradients flow where grad mode is on; with more than one chunk of logits the head is computed again in the backward
    pass instead of held. Runs under whatever autocast the caller has set; logits are float32 from the head on.

    Args:
        groups: the rows of one micro-batch; the caller keeps them within memory.
        temperature: the sampler's, > 0. The policy that generated is the tempered one, so it is the one trained.
        form: as ``inspect_model`` found it.
        entropy_gradient: let gradients flow through the entropy, too.
        want_hidden: return what a value head reads, with its gradient; it comes from the same forward pass.
        memory: of an update whose micro-batches follow one another; a sharded model has no use for it.

    Raises:
        ValueError: a temperature of 0 or less.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} has no logprobs; it must be above 0")
    # A sharded model has its weights only inside what it knows as a forward pass.
    as_method = isinstance(model, FSDPModule)
    compute = model.flat_logprobs if as_method else partial(flat_logprobs, model)
    kept = None if as_method else memory
    found = compute(groups, temperature, want_entropy, form, entropy_gradient, want_hidden, kept)
    return Logprobs(found[0], found[1] if want_entropy else None, found[2])


def flat_logprobs(
    model: "PreTrainedModel",
    groups: Sequence[PackedGroup],
    temperature: float,
    want_entropy: bool,
    form: LogprobForm,
    entropy_gradient: bool,
    want_hidden: bool,
    memory: HeadMemory | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``completion_logprobs`` as a forward pass in FSDP's sense, whose outputs are plain tensors.

    Entropy is zeros when not wanted, hidden None.
    """
    shared = form.shared_prefix and any(len(group.completions) > 1 for group in groups)
    inputs = _shared_inputs(groups, model, form.by_parts) if shared else _padded_inputs(groups, model)
    arguments = inputs.arguments | {"use_cache": False}
    hidden: Tensor | None = None
    if not form.chunked_head:
        output = model(**arguments, **({"output_hidden_states": True} if want_hidden else {}))
        if want_hidden:
            hidden = _pick(output.hidden_states[-1].flatten(0, 1), inputs.places)
        picked = _pick(output.logits.flatten(0, 1), inputs.places)
        found = _from_logits(picked, inputs.targets, temperature, None, want_entropy, entropy_gradient)
    else:
        hidden = _pick(model.base_model(**arguments).last_hidden_state.flatten(0, 1), inputs.places)
        options = (temperature, form.softcap, want_entropy, entropy_gradient)
        found = _chunked(model, memory, hidden, inputs.targets, *options)
    return found[0], found[1], hidden if want_hidden else None


def _pick(rows: Tensor, places: Tensor) -> Tensor:
    # An embedding lookup rather than indexing: the prompt's last place is picked once per completion, and the backward
    # pass of an index adds up repeated places in whatever order threads arrive.
    return F.embedding(places, rows)


def _chunked(
    model: "PreTrainedModel",
    memory: HeadMemory | None,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    softcap: float | None,
    want_entropy: bool,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    head = model.get_output_embeddings()
    size = max(1, CHUNK_LOGITS // model.config.get_text_config().vocab_size)
    pieces = list(zip(torch.split(hidden, size), torch.split(targets, size), strict=True))
    again = len(pieces) > 1 and torch.is_grad_enabled()
    held = torch.is_grad_enabled() and not again

    def of_piece(piece: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(piece) if memory is None else memory.logits(head, piece, held=held)
        return _from_logits(logits, target, temperature, softcap, want_entropy, entropy_gradient)

    found: list[tuple[Tensor, Tensor]] = [
        checkpoint(of_piece, *pair, use_reentrant=False, preserve_rng_state=False) if again else of_piece(*pair)
        for pair in pieces
    ]
    return torch.cat([logprobs for logprobs, _ in found]), torch.cat([entropy for _, entropy in found])


def _from_logits(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    softcap: float | None,
    want_entropy: bool,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """(T, V) logits and (T,) targets to (T,) logprobs and (T,) entropy (zeros when not wanted)."""
    logits = logits.float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if temperature != 1.0:
        logits = logits / temperature
    return token_logprobs(logits, targets, want_entropy, entropy_gradient)


def _padded_inputs(groups: Sequence[PackedGroup], model: "PreTrainedModel") -> _Inputs:
    pairs = [(list(map(int, group.prompt_ids)), list(map(int, ids))) for group in groups for ids in group.completions]
    rows = [prompt + completion[:-1] for prompt, completion in pairs]
    width = max(map(len, rows))
    places = [
        row * width + len(prompt) - 1 + step
        for row, (prompt, completion) in enumerate(pairs)
        for step in range(len(completion))
    ]
    targets = [token for _, completion in pairs for token in completion]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    device = model.device
    return _Inputs(
        arguments={
            "input_ids": _right_padded(rows, width, device),
            "attention_mask": torch.tensor(mask, dtype=torch.long, device=device),
        },
        places=torch.tensor(places, dtype=torch.long, device=device),
        targets=torch.tensor(targets, dtype=torch.long, device=device),
    )


def _shared_inputs(groups: Sequence[PackedGroup], model: "PreTrainedModel", by_parts: bool) -> _Inputs:
    width = max(group.tokens for group in groups)
    rows: list[list[int]] = []
    positions: list[list[int]] = []
    segments: list[list[int]] = []  # 0 the prompt, 1 to G its completions, -1 padding
    parts: list[SplitRow] = []
    places: list[int] = []
    targets: list[int] = []
    for number, group in enumerate(groups):
        prompt = list(map(int, group.prompt_ids))
        completions = [list(map(int, ids)) for ids in group.completions]
        lengths = [len(completion) - 1 for completion in completions]
        starts = accumulate(lengths, initial=len(prompt))
        row, position, segment = list(prompt), list(range(len(prompt))), [0] * len(prompt)
        for index, (completion, length, start) in enumerate(zip(completions, lengths, starts, strict=False)):
            row += completion[:-1]
            position += range(len(prompt), len(prompt) + length)
            segment += [index + 1] * length
            first = number * width + len(prompt) - 1  # the prompt's last place predicts every first token
            places += [first, *range(number * width + start, number * width + start + length)]
            targets += completion
        rows.append(row)
        positions.append(position)
        segments.append(segment)
        parts.append(SplitRow(len(prompt), lengths))
    device = model.device
    if by_parts:
        attention = split_attention(model, parts)
    else:
        seen = _prefix_mask(_right_padded(segments, width, device, fill=-1), _compute_dtype(model))
        attention = {"attention_mask": seen}
    ids, position_ids = _right_padded(rows, width, device), _right_padded(positions, width, device)
    return _Inputs(
        arguments={"input_ids": ids, "position_ids": position_ids, **attention},
        places=torch.tensor(places, dtype=torch.long, device=device),
        targets=torch.tensor(targets, dtype=torch.long, device=device),
    )


def _prefix_mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, L) segments to a (B, 1, L, L) additive mask: causal, own segment and the prompt only.

    Padding sees itself and the prompt, so that no row of the softmax is empty (a row of nothing but -inf is NaN).
    """
    keys, queries = segments.unsqueeze(1), segments.unsqueeze(2)
    causal = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool, device=segments.device).tril()
    seen = causal & ((keys == 0) | (keys == queries))
    mask = torch.zeros(seen.shape, dtype=dtype, device=segments.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min).unsqueeze(1)


def _compute_dtype(model: "PreTrainedModel") -> torch.dtype:
    kind = model.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else next(model.parameters()).dtype


def _right_padded(rows: list[list[int]], width: int, device: torch.device, fill: int = 0) -> Tensor:
    filled = [row + [fill] * (width - len(row)) for row in rows]
    return torch.tensor(filled, dtype=torch.long, device=device)
