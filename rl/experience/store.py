"""Store batches of records of experience, and every reply of a model that they were made from.

A batch is stored as a whole and never replaced. An update that is repeated after a kill therefore sends no request for
a stored batch, and gives the same pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.jobs.keys import job_key
from treadle.core.errors import DataError
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.roots import Storage
from treadle.rl.experience.record import Experience


@dataclass(frozen=True, slots=True)
class KeyedCache:
    """Cache of replies in a keyed store; `owner` is a digest of everything that the replies depend on."""

    store: KeyedStore
    owner: str

    def get(self, unit: str) -> bytes | None:
        """Return a stored reply, or None."""
        return self.store.get(job_key(self.owner, unit))

    def append(self, unit: str, value: bytes) -> None:
        """Store a reply; it is durable once this returns."""
        self.store.add(job_key(self.owner, unit), value)


class ExperienceStore:
    """Batches of records, and replies, of one workspace below a prefix of a storage. Thread-safe."""

    def __init__(self, storage: Storage, prefix: str, workspace: str) -> None:
        self._batches = KeyedStore(storage, f"{prefix}/{workspace}/batches")
        self._replies = KeyedStore(storage, f"{prefix}/{workspace}/replies")

    def cache(self, owner: str) -> KeyedCache:
        """Return the cache of replies with the given owner."""
        return KeyedCache(self._replies, owner)

    def batch(self, *name: Any) -> list[Experience] | None:
        """Return the records of a batch, whose name is JSON-able data; None if it was not stored."""
        value = self._batches.get(job_key(*name))
        return None if value is None else self._read(value)

    def add_batch(self, records: Iterable[Experience], *name: Any) -> list[Experience]:
        """Store the records of a batch, and return them; if the batch is already stored, return its stored records."""
        value = orjson.dumps([one.as_json() for one in records])
        return self._read(self._batches.add(job_key(*name), value))

    def records(self, *, before_step: int | None = None) -> Iterator[Experience]:
        """Yield the records in the order of their steps, only those before `before_step` if it is given.

        Within a step the order is fixed.
        """
        batches = [self._read(self._batches.get(key) or b"[]") for key in self._batches.keys()]  # noqa: SIM118
        for one in sorted((record for batch in batches for record in batch), key=lambda record: record.step):
            if before_step is None or one.step < before_step:
                yield one

    def _read(self, value: bytes) -> list[Experience]:
        try:
            return [Experience.from_json(one) for one in orjson.loads(value)]
        except (ValueError, AttributeError) as error:
            raise DataError(f"{self._batches.location()} holds an unreadable batch of experience: {error}") from None
