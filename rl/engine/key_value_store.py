"""Store the keys and values of a batch's sequences from one turn to the next.

A trajectory's next context starts with the previous one, so only new tokens go through the model. Trajectories of a
group share a prefix, whose keys and values are copied. Comparing token ids decides which entries are valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treadle.rl.engine.attention import grouped_attention

_STEP = 64
"""Granularity in tokens of the allocated length."""


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    most = min(len(left), len(right))
    if left[:most] == right[:most]:
        return most
    return next(place for place in range(most) if left[place] != right[place])


class KeyValueStore:
    """Table of slots with one sequence each.

    Attributes:
        ids: For each slot, the token ids whose keys and values it holds.
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        """Create an empty store; `config` is that of a transformers text model."""
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._shape = (config.num_key_value_heads, size)
        self._num_layers = config.num_hidden_layers
        self._dtype, self._device = dtype, device
        self._room = 0
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.ids: list[list[int]] = []

    @property
    def bytes_per_token(self) -> int:
        """Memory per token of one sequence, in bytes."""
        heads, size = self._shape
        num_bytes: int = 2 * self._num_layers * heads * size * int(self._dtype.itemsize)
        return num_bytes

    def clear(self) -> None:
        """Invalidate all entries; call it when the weights have changed."""
        self.ids = [[] for _ in self.ids]

    def assign(self, contexts: Sequence[list[int]], room: int) -> list[int]:
        """Assign a slot to each context and fill it with the longest known prefix, except the last token.

        `room` is the maximum length that a sequence may reach. Returns the slots, all different.
        """
        self._reserve(len(contexts), room)
        free = set(range(len(self.ids)))
        slots, sources = [], []
        for context in contexts:
            known = [num_common(context, ids) for ids in self.ids]
            best = max(range(len(known)), key=known.__getitem__)
            # Prefer the slot that already holds the prefix, so that nothing is copied.
            same = [slot for slot in free if known[slot] == known[best]]
            slot = min(same) if same else min(free, key=lambda one: (known[one], one))
            free.discard(slot)
            slots.append(slot)
            sources.append((best, min(known[best], len(context) - 1)))
        self._copy(slots, sources)
        for slot, context, (_, length) in zip(slots, contexts, sources, strict=True):
            self.ids[slot] = context[:length]
        return slots

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot to another."""
        for table in (*self.keys, *self.values):
            table[target, :, :length] = table[source, :, :length]
        self.ids[target] = self.ids[source][:length]

    def write(
        self, layer: int, slots: torch.Tensor, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Write the keys and values of tokens, (heads, tokens, size), each to its position in its slot."""
        self.keys[layer][slots, :, places] = key.transpose(0, 1).to(self._dtype)
        self.values[layer][slots, :, places] = value.transpose(0, 1).to(self._dtype)

    def _copy(self, slots: Sequence[int], sources: Sequence[tuple[int, int]]) -> None:
        moves = [
            (slot, *source) for slot, source in zip(slots, sources, strict=True) if slot != source[0] and source[1]
        ]
        if not moves:
            return
        targets = torch.tensor([move[0] for move in moves], device=self._device)
        origins = torch.tensor([move[1] for move in moves], device=self._device)
        longest = max(move[2] for move in moves)
        for table in (*self.keys, *self.values):
            # Indexing copies the sources before anything is written, because a source may be a target too.
            table[targets, :, :longest] = table[origins, :, :longest]

    def _reserve(self, num_slots: int, room: int) -> None:
        if num_slots <= len(self.ids) and room <= self._room:
            return
        before = (len(self.ids), self._room)
        self._room = max(self._room, -(-room // _STEP) * _STEP)
        self.ids += [[] for _ in range(num_slots - len(self.ids))]
        heads, size = self._shape
        shape = (len(self.ids), heads, self._room, size)
        for tables in (self.keys, self.values):
            grown = [torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in range(self._num_layers)]
            for old, new in zip(tables, grown, strict=False):
                new[: before[0], :, : before[1]] = old
            tables[:] = grown


class Prefill:
    """Layout of new tokens of several slots in sequence; each token attends to its slot up to itself."""

    def __init__(
        self, store: KeyValueStore, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Lay out `counts` new tokens per slot, after the `starts` tokens that it already has."""
        self._store = store
        device = store._device
        self._pieces = []
        offset = 0
        for slot, start, count in zip(slots, starts, counts, strict=True):
            rows = torch.arange(start, start + count, device=device)[:, None]
            ahead = torch.arange(start + count, device=device)[None, :] > rows
            mask = torch.zeros(ahead.shape, device=device).masked_fill(ahead, float("-inf"))[None]
            self._pieces.append((slot, offset, count, start + count, mask))
            offset += count
        self.places = torch.cat(
            [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        )
        self.places = self.places.to(device)
        self._slots = torch.tensor(slots, device=device).repeat_interleave(torch.tensor(counts, device=device))
        self.last = [offset + count - 1 for _, offset, count, _, _ in self._pieces]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention of one layer; see `Layout`."""
        store = self._store
        store.write(layer, self._slots, self.places, key, value)
        outs = []
        for slot, offset, count, length, mask in self._pieces:
            mine = query[None, :, offset : offset + count].to(store._dtype)
            keys, values = store.keys[layer][slot, None, :, :length], store.values[layer][slot, None, :, :length]
            outs.append(grouped_attention(mine, keys, values, mask, scale)[0])
        return torch.cat(outs, 1).to(query.dtype)


class Decode:
    """Layout of one new token for each of several slots."""

    def __init__(self, store: KeyValueStore, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Lay out one new token per slot; `lengths` are the numbers of tokens without it."""
        self._store = store
        device = store._device
        self._slots = torch.tensor(slots, device=device)
        self.places = torch.tensor(lengths, device=device)
        self._longest = max(lengths) + 1
        num_slots = len(store.ids)
        # If few slots are active, gather them; otherwise compute on all slots in place, idle ones included.
        self._is_gathered = 2 * len(slots) < num_slots
        lasts = self.places if self._is_gathered else torch.zeros(num_slots, dtype=torch.long, device=device)
        if not self._is_gathered:
            lasts[self._slots] = self.places
        ahead = torch.arange(self._longest, device=device)[None, :] > lasts[:, None]
        self._mask = torch.zeros(ahead.shape, device=device).masked_fill(ahead, float("-inf"))[:, None]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention of one layer; see `Layout`."""
        store = self._store
        store.write(layer, self._slots, self.places, key, value)
        keys, values = store.keys[layer][:, :, : self._longest], store.values[layer][:, :, : self._longest]
        mine = query.transpose(0, 1)[:, :, None].to(store._dtype)
        if self._is_gathered:
            out = grouped_attention(mine, keys[self._slots], values[self._slots], self._mask, scale)
        else:
            whole = mine.new_zeros(len(store.ids), *mine.shape[1:])
            whole[self._slots] = mine
            out = grouped_attention(whole, keys, values, self._mask, scale)[self._slots]
        return out[:, :, 0].transpose(0, 1).to(query.dtype)
