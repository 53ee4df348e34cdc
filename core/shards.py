"""Shards: the jobs of one stage instance divided among several processes."""

from __future__ import annotations

import hashlib


def shard_of(key: str, num_shards: int) -> int:
    """The shard of a job, by its owner; the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") % num_shards
