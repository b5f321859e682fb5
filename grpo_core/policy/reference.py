"""The fixed policy of the KL, in memory that an update has already."""

import ctypes
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_core.models import load_policy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PIECE_BYTES = 2**22
_MAPS = Path("/proc/self/maps")


def load_reference(folder: Path, device: torch.device, dtype: torch.dtype) -> "PreTrainedModel":
    """A saved policy, asked once and let go.

    transformers leaves weights on a CPU in pages of their file. Those would stand beside what the last update's
    gradients and activations left free in the heap, in which these weights have room, so they are copied there.

    Raises:
        UserError: the folder holds no model.
    """
    model: PreTrainedModel = load_policy(folder, device, dtype)
    mapped = _mapped(folder)
    for weight in (*model.parameters(), *model.buffers()):
        if any(start <= weight.data_ptr() < end for start, end in mapped):
            weight.data = _out_of_file(weight.data)
    return model


def _mapped(folder: Path) -> list[tuple[int, int]]:
    """Addresses at which files of a folder are mapped; empty where the system doesn't tell."""
    if not _MAPS.exists():
        return []
    found, folder = [], folder.resolve()
    for line in _MAPS.read_text().splitlines():
        parts = line.split(maxsplit=5)  # range, permissions, offset, device, inode, path
        if len(parts) == 6 and Path(parts[5]).parent == folder:
            start, end = parts[0].split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _out_of_file(weight: Tensor) -> Tensor:
    """A copy, made piece by piece; the file's pages behind each are given back, so that there are never two of it."""
    copy = torch.empty_like(weight)
    size = _PIECE_BYTES // weight.element_size()
    for to, piece in zip(torch.split(copy.view(-1), size), torch.split(weight.view(-1), size), strict=True):
        to.copy_(piece)
        start = -(-piece.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (piece.data_ptr() + piece.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            # Advice alone: a page that is asked for again comes from the file again.
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
    return copy
