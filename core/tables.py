"""Define what a table is: its name, version, columns and key.

Each package defines its own tables. Free-form parts (segments, tool calls, metadata) are JSON text, so no schema is
ever inferred from the first rows. All columns are always present; values that can be missing are nullable. A change of
columns or of their meaning raises the table's version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of table: its name in the run store, its columns, and the columns that identify a row."""

    kind: str
    version: int
    key: tuple[str, ...]
    schema: pa.Schema
    description: str
    required: bool = True
    """Whether a stage that produces it must write at least one row."""
    hidden: frozenset[str] = frozenset()
    """Columns that only readers who name them get; exports leave them out."""

    @property
    def visible(self) -> list[str]:
        """Columns that are not hidden, in their order."""
        return [name for name in self.schema.names if name not in self.hidden]


NULL_ITEMS = b"null_items"
"""Key in the metadata of a list column whose items may be null."""


def column(name: str, type_: pa.DataType, doc: str, *, nullable: bool = False, null_items: bool = False) -> pa.Field:
    """Return a column with its description, for the schema of a table."""
    return pa.field(
        name, type_, nullable=nullable, metadata={"doc": doc, **({"null_items": "yes"} if null_items else {})}
    )


def renamed(schema: pa.Schema, **docs: str) -> list[pa.Field]:
    """Return the columns of another table, with new descriptions for some of them."""
    return [
        column(field.name, field.type, docs[field.name], nullable=field.nullable) if field.name in docs else field
        for field in schema
    ]


STRINGS = pa.list_(pa.string())

PARTS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
"""Type of a column of named numbers, such as the parts of a grade: their names are data, and no table lists them."""


def parts_cell(parts: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return the value of a column of parts, sorted by name, without parts that have no finite value."""
    return [
        {"name": name, "value": float(value)}
        for name, value in sorted(parts.items())
        if value is not None and math.isfinite(value)
    ]


JOB = column(
    "job",
    pa.string(),
    "32 hex digits: digest of everything that it depends on; identifies the finished job; null if it was imported, "
    "or failed and was accepted",
    nullable=True,
)
"""Column of tables whose rows are jobs that can be recognised later; see `StageJobs`."""

TABLES: dict[str, Table] = {}
"""Tables by kind, of the stages that are loaded; see `Stage`."""
