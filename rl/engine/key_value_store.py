"""Keys and values of the sequences of a batch, kept from one turn to the next.

A trajectory's next context begins with the one before, so only what is new has to go through the model. Trajectories of
a group begin alike, so that one's keys and values are copied to the others. Ids decide what is still valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treadle.rl.engine.attention import grouped_attention

_STEP = 64
"""Tokens by which room grows at least."""


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest beginning that two sequences share."""
    most = min(len(left), len(right))
    if left[:most] == right[:most]:
        return most
    return next(place for place in range(most) if left[place] != right[place])


class KeyValueStore:
    """A table of slots, one sequence each.

    Attributes:
        ids: For each slot the ids whose keys and values it holds.
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        """`config` is that of a text model of transformers."""
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
        """Memory that one token of one sequence takes."""
        heads, size = self._shape
        num_bytes: int = 2 * self._num_layers * heads * size * int(self._dtype.itemsize)
        return num_bytes

    def clear(self) -> None:
        """Forget all: the model has changed."""
        self.ids = [[] for _ in self.ids]

    def assign(self, contexts: Sequence[list[int]], room: int) -> list[int]:
        """Give each context a slot, filled as far as any slot has its beginning, but for its last token.

        `room` is the greatest length that any of them may get to. Returns the slots, all different.
        """
        self._reserve(len(contexts), room)
        free = set(range(len(self.ids)))
        slots, sources = [], []
        for context in contexts:
            known = [num_common(context, ids) for ids in self.ids]
            best = max(range(len(known)), key=known.__getitem__)
            # Its own slot where that is free, so that nothing is copied.
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
        """Copy the first tokens of one slot to another."""
        for table in (*self.keys, *self.values):
            table[target, :, :length] = table[source, :, :length]
        self.ids[target] = self.ids[source][:length]

    def write(
        self, layer: int, slots: torch.Tensor, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Put tokens, (heads, tokens, size), each at its place of its slot."""
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
            # Read as a whole before anything is written: a source may be a target too.
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
    """A layout: new tokens of some slots, one after the other, each attending to its slot up to itself."""

    def __init__(
        self, store: KeyValueStore, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]
    ) -> None:
        """For each slot the number of tokens that it has, and of those that are new."""
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
        """See `Layout`."""
        store = self._store
        store.write(layer, self._slots, self.places, key, value)
        outs = []
        for slot, offset, count, length, mask in self._pieces:
            mine = query[None, :, offset : offset + count].to(store._dtype)
            keys, values = store.keys[layer][slot, None, :, :length], store.values[layer][slot, None, :, :length]
            outs.append(grouped_attention(mine, keys, values, mask, scale)[0])
        return torch.cat(outs, 1).to(query.dtype)


class Decode:
    """A layout: one new token of each of some slots."""

    def __init__(self, store: KeyValueStore, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """For each slot the number of tokens that it has without the new one."""
        self._store = store
        device = store._device
        self._slots = torch.tensor(slots, device=device)
        self.places = torch.tensor(lengths, device=device)
        self._longest = max(lengths) + 1
        num_slots = len(store.ids)
        # A few slots are gathered, most of them are worked at where they are, together with those that rest.
        self._is_gathered = 2 * len(slots) < num_slots
        lasts = self.places if self._is_gathered else torch.zeros(num_slots, dtype=torch.long, device=device)
        if not self._is_gathered:
            lasts[self._slots] = self.places
        ahead = torch.arange(self._longest, device=device)[None, :] > lasts[:, None]
        self._mask = torch.zeros(ahead.shape, device=device).masked_fill(ahead, float("-inf"))[:, None]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See `Layout`."""
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
