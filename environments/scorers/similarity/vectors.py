"""Compare pictures by their vectors."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

BLACK_PIXELS = 224
"""Width and height of the black picture that replaces a missing one."""


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of two vectors of equal size, from -1 to 1. Raises ValueError for zero or infinite length."""
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    if not length or not np.isfinite(length):
        raise ValueError("a picture has no vector")
    return float(np.clip(one @ other / length, -1.0, 1.0))


def black_picture() -> bytes:
    """Return a black picture in PNG."""
    size = BLACK_PIXELS
    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(size)) * size)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def win_rate(own: Sequence[float], others: Sequence[float], *, tie: float = 0.5) -> float:
    """Return the share of tasks on which `own` is above `others`; a tie counts `tie`.

    Raises ValueError if the two sequences are empty or differ in length.
    """
    if len(own) != len(others) or not own:
        raise ValueError("a win rate compares two scores for each of the same tasks")
    wins = sum(1.0 if one > other else tie if one == other else 0.0 for one, other in zip(own, others, strict=True))
    return wins / len(own)
