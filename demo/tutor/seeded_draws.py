"""Make seeded decisions: everything random in the tutor is a function of the request and a label."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Random draws that depend only on a key, never on time, order or other requests."""

    def __init__(self, *key: object) -> None:
        self._key = hashlib.blake2b("\0".join(map(str, key)).encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def bits(self, label: str) -> int:
        """Return 64 bits for a label."""
        return int.from_bytes(hashlib.blake2b(label.encode(), key=self._key, digest_size=8).digest(), "big")

    def share(self, label: str) -> float:
        """Return a number in [0, 1) for a label."""
        return self.bits(label) / 2**64

    def happens(self, label: str, rate: float) -> bool:
        """Return whether an event with the given rate happens."""
        return rate > 0 and self.share(label) < rate

    def choose(self, label: str, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.bits(label) % len(options)]
