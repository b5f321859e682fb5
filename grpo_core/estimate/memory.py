"""Bytes of each stage by what they hold. Plain numbers in, bytes by component out; nothing is looked up."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_core.estimate.shapes import Shape

if TYPE_CHECKING:
    from grpo_core.estimate.trace import Held

MIB = 2**20
CPU_BASE = 750 * MIB
"""A CPU process of a run before any model: Python, torch, transformers, Prefect, MLflow, pyarrow (measured)."""
CPU_HELPERS = 400 * MIB
"""Beside it: Prefect's own server and the workers that check answers (measured with two workers)."""
GPU_BASE = 1024 * MIB
"""A CUDA context, cuBLAS's workspaces and the allocator's rounding; an assumption, not measured here."""

_FLOAT32 = 4
_HEAP_TOP = 64 * MIB
"""glibc gives the end of its heap back when more than this is free there (twice M_MMAP_THRESHOLD_MAX)."""
_HOLES = 0.65
_AMONG_THEM = 0.5
"""Of a pass's small blocks, and of small gradients, which come to lie among them while they live: what glibc keeps in
holes. Fitted to runs of benchmarks/plan.py."""
_HOLES_AT_ONCE = 0.2
"""Of small blocks where a step is one micro-batch: no gradient lies among them when they are most."""
_LOGIT_COPIES = 5  # float32: what the head gives, scaled, shifted, exponentials, padded to blocks


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One stage on one device."""

    stage: str
    device: str  # "cuda" or "cpu"
    components: dict[str, int]  # bytes by name

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(self.components.values())


def update_memory(
    shape: Shape,
    held: "Held | None",
    *,
    compute_bytes: int,
    base: int,
    on_cpu: bool,
    ranks: int = 1,
) -> dict[str, int]:
    """Bytes a device of an update.

    Mixed precision with AdamW (ZeRO, Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1): 4 bytes a parameter for
    float32 master weights, 4 for gradients, 8 for two moments. Autocast's 16-bit copies are in ``held``. With LoRA
    gradients and moments belong to the adapter alone, and the base is held in the precision of computing. The reference
    of the KL is gone before there are gradients, which take no less. ``ranks`` share all of these evenly (ZeRO-3,
    FSDP2) and gather what they compute with: embedding and head, a layer, the next one on its way and its buffer; then
    there are whole gradients before they are summed.

    Args:
        held: of the largest micro-batch; None: not known, and left out. Where it is a step's only one, gradients come
            as its activations go, and count as far as they are there at the highest point.
        compute_bytes: of a weight in forward passes.
        base: of the process.
        on_cpu: whether glibc's holes are to be counted.
    """
    trained = shape.adapter or shape.parameters
    shared = {
        "weights": _FLOAT32 * trained + (compute_bytes * shape.parameters if shape.adapter else 0),
        "gradients": _FLOAT32 * trained,
        "moments": 2 * _FLOAT32 * trained,
    }
    found = {name: -(-size // ranks) for name, size in shared.items()}
    if ranks > 1:
        found["gathered weights"] = compute_bytes * (shape.root + 3 * shape.layer)
        whole = compute_bytes * (shape.root + shape.layer) + _FLOAT32 * max(shape.root, 2 * shape.layer)
        found["whole gradients"] = 0 if shape.adapter else whole
    if held is not None:
        if held.gradients is None:
            holes = _HOLES * held.small + _AMONG_THEM * (0 if shape.adapter else _FLOAT32 * shape.small)
        else:
            found["gradients"], holes = held.gradients, _HOLES_AT_ONCE * held.small
        passes = held.most - (held.gradients or 0)
        found["activations"] = min(held.activations, passes)
        found["logits"] = passes - found["activations"]
        found["allocator"] = int(_HEAP_TOP + holes) if on_cpu else 0
    return {name: size for name, size in (found | {"process": base}).items() if size}


def generation_memory(
    shape: Shape,
    *,
    prompts: int,
    rows: int,
    prompt_tokens: int,
    completion_tokens: int,
    weight_bytes: int,
    base: int,
) -> dict[str, int]:
    """Bytes of a batch of the transformers engine at its end, when no row has ended early.

    The cache holds keys and values of every token of every row, 2 * layers * key-value width numbers each
    (grouped-query attention, Ainslie et al. 2023, arXiv 2305.13245), in buffers that grow by a quarter
    (``generation.cache``). A step repeats one layer's keys and values for all query heads; the sampler holds a few
    copies of the rows' logits.

    Args:
        prompts: in a batch, each prefilled once.
        rows: completions in a batch.
        prompt_tokens: of the longest prompt: shorter ones are padded.
        completion_tokens: at most.
    """
    tokens = cache_tokens(prompt_tokens, completion_tokens)
    used = prompt_tokens + completion_tokens
    step = 2 * rows * used * shape.attention
    prefill = prompts * prompt_tokens * (4 * shape.hidden + 3 * shape.wide)
    return {
        "weights": shape.parameters * weight_bytes,
        "KV cache": rows * tokens * shape.key_value_numbers * weight_bytes,
        "activations": max(step, prefill) * weight_bytes,
        "logits": rows * shape.vocabulary * (_LOGIT_COPIES * _FLOAT32 + weight_bytes),
        "process": base,
    }


def cache_tokens(prompt_tokens: int, completion_tokens: int) -> int:
    """Places a row has in the cache's buffers once its last token but one is in: ``generation.cache``'s own growth."""
    room = prompt_tokens + max(64, prompt_tokens // 4)
    while room < prompt_tokens + completion_tokens - 1:
        room += 1 + max(64, (room + 1) // 4)
    return room


def vllm_memory(
    shape: Shape,
    *,
    device_bytes: int,
    memory_share: float,
    tensor_parallel: int,
    weight_bytes: int,
    cache_bytes: int | None,
    row_bytes: int,
) -> dict[str, int]:
    """Bytes a device of a vLLM engine: it takes its share of the device whole, and what weights leave is its cache.

    PagedAttention (Kwon et al. 2023, arXiv 2309.06180). A tenth is left to activations and CUDA graphs, an
    assumption: of the share, or of the weights where the cache has a size of its own.

    Args:
        cache_bytes: where the config says how large the cache is; None: what is left.
        row_bytes: of the longest completion's keys and values, without room for which nothing is generated.
    """
    weights = -(-shape.parameters * weight_bytes // tensor_parallel)
    share = int(device_bytes * memory_share)
    working = (share if cache_bytes is None else weights) // 10
    left = max(-(-row_bytes // tensor_parallel), share - weights - working)
    return {"weights": weights, "KV cache": left if cache_bytes is None else cache_bytes, "activations": working}
