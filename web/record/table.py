"""Convert web record entries to rows of the table `web_record` and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import orjson

from treadle.core.errors import ArtifactError
from treadle.core.store.artifacts import ArtifactRef, ArtifactWriter
from treadle.core.store.roots import Storage
from treadle.web.record.stored_entries import bounded
from treadle.web.record.tables import WEB_RECORD
from treadle.web.types import Entry, SearchEntry, entry_from_json

_ROWS_AT_ONCE = 64
_PAGE_TEXTS = ("final_url", "title", "text", "media_type", "failure", "detail", "reader")


def row_of(entry: Entry, loose_key: str | None = None) -> dict[str, Any]:
    """Return the row of an entry; empty values become null."""
    row: dict[str, Any] = dict.fromkeys(WEB_RECORD.schema.names)
    row.update(key=entry.key, recorded_at=entry.recorded_at, text=entry.text or None, loose_key=loose_key)
    if isinstance(entry, SearchEntry):
        row.update(failure=entry.failure, detail=entry.detail or None)
        row.update(kind="search", request=entry.query, language=entry.language, provider=entry.provider)
        row["hits"] = orjson.dumps([asdict(hit) for hit in entry.hits]).decode()
    else:
        row.update(kind="page", request=entry.url)
        row.update({name: getattr(entry, name) or None for name in _PAGE_TEXTS})
    return row


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Return the entry of a row. Raises ArtifactError for a row that `row_of` would not produce."""
    data = {name: value for name, value in row.items() if value is not None and name not in ("request", "hits")}
    try:
        if row["kind"] == "search":
            data |= {"query": row["request"], "hits": orjson.loads(row["hits"])}
        else:
            data["url"] = row["request"]
        entry = entry_from_json(orjson.dumps(data))
        if len(entry.key) != 32 or len(bytes.fromhex(entry.key)) != 16:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ArtifactError("a row of a web record cannot be read") from None
    return bounded(entry)


def write_record(
    storage: Storage, entries: Iterable[tuple[Entry, str | None]], *, made_by: str, work: str | None = None
) -> ArtifactRef:
    """Write entries, each with its loose key or None, as an artifact; equal entries give an equal digest.

    Entries must come in the order of their keys, else ValueError is raised; only a few are held at a time. `made_by` is
    stored in the manifest. `work` is the folder in the storage in which the artifact is prepared; None for the default.
    """
    writer = ArtifactWriter(storage, WEB_RECORD, made_by=made_by, work=work)
    try:
        rows, last = list[dict[str, Any]](), ""
        for entry, loose_key in entries:
            if entry.key <= last:
                raise ValueError(
                    f"entry {entry.key} comes after {last}: entries must be written in the order of their keys"
                )
            last = entry.key
            rows.append(row_of(bounded(entry), loose_key))
            if len(rows) == _ROWS_AT_ONCE:
                writer.write(rows)
                rows.clear()
        writer.write(rows)
        return writer.commit()
    except BaseException:
        writer.abandon()
        raise
