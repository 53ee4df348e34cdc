"""Derive random seeds."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: str | int) -> int:
    """Return a seed in [0, 2**31) derived from `parts`; equal parts give equal seeds on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
