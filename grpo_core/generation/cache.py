"""A key-value cache for decoding: a token is written into room kept ready, instead of copying all tokens before it."""

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values [rows, heads, tokens, head size], as views of buffers that grow by a quarter."""

    keys: torch.Tensor
    values: torch.Tensor
    _key_room: torch.Tensor
    _value_room: torch.Tensor

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor) -> None:
        """Take over the chosen ``rows`` of a filled layer; a row may be chosen many times."""
        super().__init__()
        self.device, self.is_initialized = layer.keys.device, True
        self._take(layer.keys, layer.values, rows)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        used = self.keys.shape[-2]
        end = used + key_states.shape[-2]
        if end > self._key_room.shape[-2]:
            self._key_room, self._value_room = _with_room(self.keys, end), _with_room(self.values, end)
        self._key_room[:, :, used:end] = key_states
        self._value_room[:, :, used:end] = value_states
        self.keys, self.values = self._key_room[:, :, :end], self._value_room[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._take(self.keys, self.values, indices)

    def _take(self, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor) -> None:
        used = keys.shape[-2]
        self._key_room = _with_room(keys.index_select(0, rows), used)
        self._value_room = _with_room(values.index_select(0, rows), used)
        self.keys, self.values = self._key_room[:, :, :used], self._value_room[:, :, :used]


def _with_room(states: torch.Tensor, tokens: int) -> torch.Tensor:
    rows, heads, used, size = states.shape
    buffer = states.new_empty((rows, heads, tokens + max(64, tokens // 4), size))
    buffer[:, :, :used] = states
    return buffer


def spread(cache: DynamicCache, rows: torch.Tensor) -> None:
    """Make the chosen ``rows`` of a prefilled cache its batch, with room for tokens to come."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[number] = RoomyLayer(layer, rows)
        else:  # sliding windows and linear attention do not grow, or have ways of their own
            layer.batch_select_indices(rows)
