"""One tensor over ranks: which rows a rank has, how they are read from a file, and how all come together again."""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def own_rows(count: int, rank: int, size: int) -> slice:
    """Which of a tensor's rows FSDP2 gives to a rank: equal pieces, of which the last may be short or empty."""
    rows = -(-count // size)
    return slice(min(rank * rows, count), min((rank + 1) * rows, count))


def rows_like(like: Tensor) -> slice:
    """Which rows this rank has of a tensor that is sharded."""
    assert isinstance(like, DTensor)
    return own_rows(like.shape[0], like.device_mesh.get_local_rank(), like.device_mesh.size())


def shard_of(local: Tensor, like: Tensor) -> Tensor:
    """This rank's rows as the whole that they are part of, sharded as a tensor is that is there."""
    assert isinstance(like, DTensor)
    return DTensor.from_local(
        local, like.device_mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride()
    )


def read_like(file: Any, key: str, like: Tensor) -> Tensor:
    """A tensor of an open safetensors file; of one that is sharded only this rank's rows are read."""
    if not isinstance(like, DTensor):
        found: Tensor = file.get_tensor(key)
        return found
    rows = rows_like(like)
    return shard_of(file.get_slice(key)[rows.start : rows.stop], like)


def whole(tensor: Tensor) -> Tensor:
    """All rows of a tensor that may be sharded; the ranks have to ask together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
