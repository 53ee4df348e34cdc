"""Hold the trajectories of each instance, and the questions of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from treadle.viewer.tables import KeyedTable, StoredTable
from treadle.viewer.trajectories import JoinedTables, TrajectoryTable


@dataclass(frozen=True, slots=True)
class InstancePart:
    """Trajectories of one instance."""

    instance: str
    kind_name: str
    kind: TrajectoryTable
    table: StoredTable
    facts: pa.Table
    joined: JoinedTables

    @property
    def digests(self) -> tuple[str | None, ...]:
        """Digests of all tables that the part was built from."""
        return (self.table.reader.digest, *self.joined.digests)


@dataclass(frozen=True, slots=True)
class QuestionTables:
    """Lookup of questions by key. Short previews of their texts are in memory, the rest is read from storage."""

    tables: Sequence[KeyedTable] = ()
    previews: dict[str, str] = field(default_factory=dict)

    def row(self, key: str) -> dict[str, Any] | None:
        """Return the row of a question, or None if the key is unknown. Raise ArtifactError if it cannot be read."""
        names = ("question", "answers", "choices", "dataset", "domain", "split", "source_file", "source_row")
        found = (table.row(key, names) for table in self.tables)
        return next((row for row in found if row is not None), None)
