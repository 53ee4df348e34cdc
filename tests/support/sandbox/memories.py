"""Memories of rollouts that tests look into."""

from __future__ import annotations


class Remembering:
    """A memory whose units are written once."""

    def __init__(self) -> None:
        self.units: dict[str, bytes] = {}

    def get(self, unit: str) -> bytes | None:
        return self.units.get(unit)

    def append(self, unit: str, value: bytes) -> None:
        assert unit not in self.units
        self.units[unit] = value
