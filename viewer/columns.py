"""Store filter columns compactly: select rows by value, and count rows per value."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa


class SingleValueColumn:
    """Column with one value per row."""

    def __init__(self, column: pa.ChunkedArray, order: Sequence[str] = ()) -> None:
        """Encode `column`. Values in `order` come first; the others follow by frequency."""
        encoded = column.combine_chunks().dictionary_encode()
        found: list[str] = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
        frequency = np.bincount(codes, minlength=len(found))
        first = {value: place for place, value in enumerate(order)}
        ranks = sorted(range(len(found)), key=lambda n: (first.get(found[n], len(first)), -frequency[n], found[n]))
        moved = np.empty(len(found), np.int32)
        moved[ranks] = np.arange(len(found), dtype=np.int32)
        self.values = tuple(found[rank] for rank in ranks)
        self.codes = moved[codes]

    def mask(self, wanted: Collection[str]) -> np.ndarray:
        """Return a mask of the rows that have one of the values."""
        chosen = np.array([value in wanted for value in self.values], bool)
        rows: np.ndarray = chosen[self.codes] if len(chosen) else np.zeros(len(self.codes), bool)
        return rows

    def counts(self, rows: np.ndarray) -> list[int]:
        """Return for each value the number of rows in a mask that have it."""
        found: list[int] = np.bincount(self.codes[rows], minlength=len(self.values)).tolist()
        return found


class MultiValueColumn:
    """Column with any number of values per row, stored as bits; bit n represents value n."""

    def __init__(self, bits: np.ndarray, values: Sequence[str]) -> None:
        present = np.bitwise_or.reduce(bits) if len(bits) else 0
        self._places = [place for place in range(len(values)) if present >> place & 1]
        self.values = tuple(values[place] for place in self._places)
        self._bits = bits

    def mask(self, wanted: Collection[str]) -> np.ndarray:
        """Return a mask of the rows that have one of the values."""
        bits = sum(1 << place for place, value in zip(self._places, self.values, strict=True) if value in wanted)
        rows: np.ndarray = (self._bits & bits) != 0
        return rows

    def counts(self, rows: np.ndarray) -> list[int]:
        """Return for each value the number of rows in a mask that have it."""
        bits = self._bits[rows]
        return [int(np.count_nonzero(bits & (1 << place))) for place in self._places]
