"""Export a table of a run as a data set: its files, and a card with description and provenance."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import ArtifactError, RunError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import data_set_card
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.store.json_columns import parsed_batches, parsed_schema
from treadle.core.tables import CHECKPOINTS, TABLES
from treadle.tasks.exchange.artifact_origin import json_block, origin_text, origins, without_paths
from treadle.tasks.exchange.parquet_parts import write_parts

CARD = "README.md"
_LICENCE = (
    "## Licence\n\nNo licence is stated. Questions come from the data sets named above, and text in tool results comes "
    "from the searched documents; models wrote the rest. Check the licences of all three before you share it."
)

_LEFT_OUT = "## Left out\n\nColumns that are hidden from models are not in this copy: {names}."


def export_dataset(run: Run, record: StageRecord, kind: str, target: Path, *, replace: bool = False) -> dict[str, Any]:
    """Write a table of a result into a new folder that `datasets.load_dataset` reads; return a summary.

    Columns of JSON text with a fixed form become lists and structs. Hidden columns are left out, which the card states.

    Raises RunError if the instance has no table of this kind, ArtifactError for a file that has changed or text
    that does not have its declared form, ConfigError if `target` cannot be used (see `new_folder`), StorageError.
    """
    if kind not in record.outputs:
        raise RunError(f"{record.address} made no {kind}; it made {', '.join(record.outputs)}")
    if kind == CHECKPOINTS.kind:
        raise RunError(f"{record.address} made a model; write it with `treadle export model`")
    rows = run.rows(record.outputs[kind])
    table = TABLES[kind]
    hidden = sorted(table.hidden)
    chain = origins(run, record, kind)
    facts: dict[str, Any] = {
        "kind": kind,
        "run": run.run_id,
        "instance": record.address,
        "digest": rows.digest,
        "num_rows": rows.num_rows,
        **({"left_out": hidden} if hidden else {}),
    }
    columns, schema = table.visible, parsed_schema(table, table.visible)
    is_changed = bool(hidden or table.parsed)
    with new_folder(target, replace=replace) as folder:
        for entry in rows.manifest.files:
            if not (is_changed and entry.name.endswith(".parquet")):
                copy_checked(run, rows, entry.name, folder / entry.name)
        if is_changed:
            write_parts(parsed_batches(rows.batches(columns), table, columns), schema, folder)
        card = data_set_card(table, rows.manifest, schema)
        parts = [
            card.rstrip(),
            *([_LEFT_OUT.format(names=", ".join(f"`{name}`" for name in hidden))] if hidden else []),
            origin_text(chain),
            "## Settings\n\n" + json_block(without_paths(record.settings)),
            _LICENCE,
        ]
        (folder / CARD).write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        num_files = sum(path.is_file() for path in folder.rglob("*")) - 1
        write_facts(folder, {**facts, "made_of": [origin.as_dict() for origin in chain]})
    return {**facts, "folder": str(target), "num_files": num_files}


def copy_checked(run: Run, rows: ArtifactReader, name: str, target: Path) -> None:
    """Copy a data file of an artifact and verify its hash; raise ArtifactError if the file has changed."""
    entry = next(entry for entry in rows.manifest.files if entry.name == name)
    key = f"artifacts/{rows.kind}/{rows.digest}/{name}"
    # The name comes from a manifest file and must not lead out of the target folder.
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise ArtifactError(f"{key} is no name of a file of an artifact")
    target.parent.mkdir(parents=True, exist_ok=True)
    with run.storage.open(key) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    with target.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
            raise ArtifactError(f"{key} has changed since it was written; `treadle verify` shows what else has")


def front_matter(fields: dict[str, str | list[str]]) -> str:
    """Return the YAML front matter of a card; values are quoted unless they are plain words."""
    lines = ["---"]
    for name, value in fields.items():
        if isinstance(value, list):
            lines += [f"{name}:", *(f"- {_scalar(item)}" for item in value)]
        else:
            lines.append(f"{name}: {_scalar(value)}")
    return "\n".join([*lines, "---"])


def _scalar(text: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9._/-]*", text) and text.lower() not in (
        "yes",
        "no",
        "true",
        "false",
        "null",
        "on",
        "off",
    ):
        return text
    return orjson.dumps(text).decode()
