"""The machine that a run is planned for: what its devices hold, and how fast they are."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_core.errors import UserError
from grpo_core.estimate.time import Rates
from grpo_core.models import ModelConfig, resolve_device

GIB = 2**30

# Data sheets: dense bfloat16 operations and bytes read, a second. The first whose name is in the device's name counts.
_PEAKS = {
    "B200": (2250e12, 8.0e12),
    "H200": (989e12, 4.8e12),
    "H100 PCIe": (756e12, 2.0e12),
    "H100": (989e12, 3.35e12),
    "A100": (312e12, 2.0e12),
    "L40S": (362e12, 0.86e12),
    "RTX 4090": (165e12, 1.0e12),
    "A10": (125e12, 0.6e12),
    "L4": (121e12, 0.3e12),
}
_UNKNOWN = "A100"
_GPU_SHARE = 0.4  # of the peak, in training: what well-tuned runs report; an assumption
_BANDWIDTH_SHARE = 0.6
_GPU_LAUNCH = 7e-4  # seconds a layer and step by transformers: some 40 kernels called from Python
_CPU_SHARE = 0.6  # of a plain product's rate
_CPU_LAUNCH = 3e-4


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices of one kind."""

    device: str  # "cuda" or "cpu"
    name: str  # with what its rates come from
    devices: int  # GPUs, or 1
    bytes_each: int  # of a GPU, or of RAM
    rates: Rates


def this_machine(config: ModelConfig, tflops: float | None = None) -> Machine:
    """What ``model.device`` means here. On a CPU it multiplies for a quarter of a second to see how fast it is.

    Args:
        tflops: what a device does, where the caller knows better.

    Raises:
        UserError: a GPU is asked for and there is none.
    """
    if resolve_device(config).type == "cuda":
        found = torch.cuda.get_device_properties(0)
        return gpus(torch.cuda.device_count(), found.total_memory, found.name, tflops)
    flops = _measured_flops() if tflops is None else tflops * 1e12
    how = "measured" if tflops is None else "given"
    name = f"CPU, {torch.get_num_threads()} threads, {flops / 1e9:,.0f} GFLOP/s {how}"
    return Machine("cpu", name, 1, memory_bytes(), Rates(_CPU_SHARE * flops, _measured_bandwidth(), _CPU_LAUNCH))


def gpus(count: int, bytes_each: int, name: str = "", tflops: float | None = None) -> Machine:
    """So many GPUs of one kind, here or elsewhere; one of unknown name counts as an A100."""
    known = next((known for known in _PEAKS if known in name), _UNKNOWN)
    flops, bandwidth = _PEAKS[known]
    if tflops is not None:
        flops = tflops * 1e12
    told = f"{count} x {name or 'GPU'} of {bytes_each / GIB:.0f} GiB, {_GPU_SHARE:.0%} of {flops / 1e12:.0f} TFLOP/s"
    told += "" if tflops is not None or known in name else f" ({known}'s)"
    return Machine(
        "cuda", told, count, bytes_each, Rates(_GPU_SHARE * flops, _BANDWIDTH_SHARE * bandwidth, _GPU_LAUNCH)
    )


def memory_bytes() -> int:
    """RAM of this machine, or what its control group allows if that is less."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found = min(found, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found


def refuse_too_many(ranks: int, machine: Machine) -> None:
    """Raises UserError when an update wants more GPUs than there are."""
    if machine.device == "cuda" and ranks > machine.devices:
        raise UserError(
            f"update.ranks is {ranks}, one GPU each, and there are {machine.devices} GPUs; lower update.ranks."
        )


def _measured_flops(size: int = 1024, seconds: float = 0.25) -> float:
    """Float32 operations a second of square products, the best of those made in so many seconds."""
    left, right = torch.ones(size, size), torch.ones(size, size)
    torch.mm(left, right)
    best, ends = float("inf"), time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        torch.mm(left, right)
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best


def _measured_bandwidth(size: int = 2**26) -> float:
    """Bytes a second of reading what no cache holds: the best of three sums."""
    numbers = torch.ones(size // 4)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - began)
    return size / best
