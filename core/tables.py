"""Define what a table is: its name, version, columns and key.

Each package defines its own tables. Nested parts (segments, tool calls, metadata) are JSON text, so no schema is ever
inferred from the first rows; `Table.parsed` has the types of those with a fixed form. All columns are always present;
values that can be missing are nullable. A change of columns or of their meaning raises the table's version.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    parsed: Mapping[str, pa.DataType] = field(default_factory=dict, compare=False)
    """Columns of JSON text with a fixed form, and the types that they have in tables for analysis and in exports:
    lists, structs, text, numbers and booleans, and `object_items`. See `treadle.core.store.json_columns`."""

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


JSON_FORM = b"json_form"
"""Key in the metadata of a field inside a parsed column; its values are the next three constants."""
KEY_OF_OBJECTS = b"key_of_objects"
KEY_OF_VALUES = b"key_of_values"
TEXT_OF_JSON = b"text"


def object_items(key: str, *fields: pa.Field) -> pa.DataType:
    """Return the parsed type of a JSON object whose keys are names: a list of structs, the name in the field `key`.

    The values of the object are objects with these fields.
    """
    return _named_items(key, KEY_OF_OBJECTS, fields)


def value_items(key: str, value: pa.Field) -> pa.DataType:
    """Return the parsed type of a JSON object from names to plain values: a list of structs of name and value."""
    return _named_items(key, KEY_OF_VALUES, (value,))


def _named_items(key: str, form: bytes, fields: Sequence[pa.Field]) -> pa.DataType:
    first = pa.field(key, pa.string(), nullable=False, metadata={JSON_FORM: form})
    return pa.list_(pa.struct([first, *fields]))


def json_text(name: str) -> pa.Field:
    """Return a field inside a parsed column that has no fixed form, and therefore stays JSON text."""
    return pa.field(name, pa.string(), nullable=False, metadata={JSON_FORM: TEXT_OF_JSON})


def required(name: str, kind: pa.DataType) -> pa.Field:
    """Return a field inside a column that every item has."""
    return pa.field(name, kind, nullable=False)


STRINGS = pa.list_(pa.string())

PARTS = pa.list_(
    pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.float64(), nullable=False)])
)
"""Type of a column with the named parts of a score, a reward or a grade, sorted by name; see `part_items`. The names
are open: no table declares them."""

PARTS_OBJECT = value_items("name", pa.field("value", pa.float64()))
"""Parsed type of a column whose JSON text is an object of named parts of a score, a reward or a grade."""


def part_items(parts: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return parts as items of a column of type `PARTS`; those without a finite value are left out."""
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


def find_table(kind: str) -> Table | None:
    """Return a table by its kind; all stages are loaded if no loaded one produces it. None if there is no such table.

    Raises ConfigError if a stage cannot be loaded.
    """
    if kind not in TABLES:
        # By name, because stages are above this package, which must not import them.
        importlib.import_module("treadle.stages.registry").stage_entries()
    return TABLES.get(kind)


CHECKPOINTS = Table(
    "checkpoint",
    2,
    ("name",),
    pa.schema(
        [
            column("name", pa.string(), "address of the instance that made it, such as 1/sft"),
            column("base_model", pa.string(), "model that training began with: `embedded`, folder, hub id or address"),
            column(
                "base_digest",
                pa.string(),
                "hex digest of that model's files; of a hub id its commit in `sft`, else empty",
            ),
            column("finetuning_type", pa.string(), "full, or lora merged into the base"),
            column("num_steps", pa.int64(), "steps of the training: optimizer steps, or batches of rollouts in `rl`"),
            column("num_epochs", pa.float64(), "passes over the rows"),
            column("num_rows", pa.int64(), "rows trained on"),
            column(
                "num_target_tokens",
                pa.int64(),
                "tokens of one epoch that count in the loss; null in `rl`, which samples its own",
                nullable=True,
            ),
            column("first_loss", pa.float64(), "loss at the first logged step; null if none is logged", nullable=True),
            column("last_loss", pa.float64(), "loss at the last logged step; null if none is logged", nullable=True),
            column("tokenizer_digest", pa.string(), "tokenizer and chat template, as in the rows"),
            column("seed", pa.int64(), "of training"),
            column("engine", pa.string(), "engine that trained it"),
            column("versions", pa.string(), "JSON object: package -> version in the engine's environment"),
            column("chosen_step", pa.int64(), "step of the exported state; null in `sft`", nullable=True),
            column("first_reward", pa.float64(), "mean reward at the first step; null in `sft`", nullable=True),
            column("last_reward", pa.float64(), "mean reward at the last step; null in `sft`", nullable=True),
            column(
                "validation_correctness",
                pa.float64(),
                "mean correctness on held-out questions at the chosen step; null without validation",
                nullable=True,
            ),
        ]
    ),
    "A trained model; its files are in the folder `model` next to this table.",
    parsed={"versions": value_items("package", required("version", pa.string()))},
)


MODEL_FOLDER = "model"
"""Folder of a checkpoint's artifact that holds the model in Hugging Face format."""
