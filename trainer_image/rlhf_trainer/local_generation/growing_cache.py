"""Key-value cache with room for the tokens to come."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer


class GrowingLayer(DynamicLayer):
    """Writes new keys and values into spare room, of which it makes a quarter more whenever it is full; `DynamicLayer`
    copies all of them for each token. `keys` and `values`, [n, heads, T, D], are views of the part in use."""

    keys: Any
    values: Any
    _whole: tuple[Tensor, Tensor]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Appends [n, heads, new, D]; returns all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = self._whole = key_states[:, :, :0], value_states[:, :, :0]
        rows, at = len(self.keys), self.keys.shape[2]
        end = at + key_states.shape[2]
        if end > self._whole[0].shape[2]:
            self._whole = _with_room(self.keys, end + end // 4), _with_room(self.values, end + end // 4)
        for whole, new in zip(self._whole, (key_states, value_states), strict=True):
            whole[:rows, :, at:end] = new
        self.keys, self.values = (whole[:rows, :, :end] for whole in self._whole)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was; where there are no more rows than before, only those that change
        are copied."""
        if not self.get_seq_length():
            return
        index = beam_idx.to(self.device)
        if len(index) > len(self.keys):
            self.keys, self.values = self._whole = self.keys[index], self.values[index]
            return
        moved = (index != torch.arange(len(index), device=index.device)).nonzero().flatten()
        for used in (self.keys, self.values):
            used[moved] = used[index[moved]]
        self.keys, self.values = self.keys[: len(index)], self.values[: len(index)]


def _with_room(used: Tensor, tokens: int) -> Tensor:
    rows, heads, length, size = used.shape
    whole = used.new_empty(rows, heads, tokens, size)
    whole[:, :, :length] = used
    return whole


def grow_in_place(cache: Cache) -> None:
    """Makes the plain layers of an empty cache GrowingLayers; those with a window or another state stay as they are."""
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[i] = GrowingLayer()  # type: ignore[no-untyped-call]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
