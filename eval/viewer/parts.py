"""What is kept of a run's tables: the trajectories of each instance, and the questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from treadle.eval.viewer.tables import KeyedTable, StoredTable
from treadle.eval.viewer.trajectories import Joined, Kind


@dataclass(frozen=True, slots=True)
class Part:
    """The trajectories of one instance."""

    instance: str
    kind_name: str
    kind: Kind
    table: StoredTable
    facts: pa.Table
    joined: Joined

    @property
    def digests(self) -> tuple[str | None, ...]:
        """Of all tables that it was made of."""
        return (self.table.reader.digest, *self.joined.digests)


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions by their keys: the beginnings of their texts in memory, all else where it is stored."""

    tables: Sequence[KeyedTable] = ()
    beginnings: dict[str, str] = field(default_factory=dict)

    def row(self, key: str) -> dict[str, Any] | None:
        """A question; None where it is not known. Raises ArtifactError."""
        names = ("question", "answers", "choices", "dataset", "domain", "split", "source_file", "source_row")
        found = (table.row(key, names) for table in self.tables)
        return next((row for row in found if row is not None), None)
