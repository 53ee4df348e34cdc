"""Encode web entries as values of a run's store: truncated and compressed, and validated when read."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace

from treadle.core.errors import ArtifactError
from treadle.core.store.keyed_store import KeyedStore
from treadle.web.types import (
    MAX_HITS,
    MAX_NAME_CHARS,
    MAX_SNIPPET_CHARS,
    MAX_TEXT_CHARS,
    MAX_TITLE_CHARS,
    MAX_URL_CHARS,
    Entry,
    SearchEntry,
    WebHit,
    entry_from_json,
)

WEB_STORE = "web"
"""Name of the store in which a run keeps its web entries."""

_MAX_QUERY_CHARS = 5_000
_MAX_DETAIL_CHARS = 500
_FORMAT = b"1"
# Twice the size of a search of 20 hits whose characters all need 6 bytes of JSON.
_MAX_BYTES = 2 * 1024 * 1024


def bounded(entry: Entry) -> Entry:
    """Return the entry with its texts truncated to their limits and encodable in UTF-8."""
    if isinstance(entry, SearchEntry):
        return replace(
            entry,
            query=_cut(entry.query, _MAX_QUERY_CHARS),
            provider=_cut(entry.provider, MAX_NAME_CHARS),
            hits=tuple(_bounded_hit(hit) for hit in entry.hits[:MAX_HITS]),
            recorded_at=_cut(entry.recorded_at, MAX_NAME_CHARS),
            text=_cut(entry.text, MAX_TEXT_CHARS),
            detail=_cut(entry.detail, _MAX_DETAIL_CHARS),
        )
    return replace(
        entry,
        url=_cut(entry.url, MAX_URL_CHARS),
        recorded_at=_cut(entry.recorded_at, MAX_NAME_CHARS),
        final_url=_cut(entry.final_url, MAX_URL_CHARS),
        title=_cut(entry.title, MAX_TITLE_CHARS),
        text=_cut(entry.text, MAX_TEXT_CHARS),
        media_type=_cut(entry.media_type, MAX_NAME_CHARS),
        detail=_cut(entry.detail, _MAX_DETAIL_CHARS),
        reader=_cut(entry.reader, MAX_NAME_CHARS),
    )


def _bounded_hit(hit: WebHit) -> WebHit:
    return WebHit(
        title=_cut(hit.title, MAX_TITLE_CHARS),
        url=_cut(hit.url, MAX_URL_CHARS),
        snippet=_cut(hit.snippet, MAX_SNIPPET_CHARS),
        site_name=_cut(hit.site_name, MAX_NAME_CHARS),
        date=_cut(hit.date, MAX_NAME_CHARS),
    )


def _cut(text: str, most: int) -> str:
    return text[:most].encode("utf-8", "replace").decode()


def packed(entry: Entry) -> bytes:
    """Return the stored value of a `bounded` entry: one byte of format, then compressed JSON."""
    return _FORMAT + zlib.compress(entry.to_json())


def unpacked(value: bytes, where: str) -> Entry:
    """Read the output of `packed`. Raises ArtifactError that names `where` the value is stored."""
    try:
        if value[:1] != _FORMAT:
            raise ArtifactError("an entry of a web record is in a format that this Treadle does not read")
        reader = zlib.decompressobj()
        data = reader.decompress(value[1:], _MAX_BYTES)
        if not reader.eof:
            raise ArtifactError("an entry of a web record is truncated or too large")
        return entry_from_json(data)
    except (zlib.error, ArtifactError) as error:
        raise ArtifactError(f"{where} is damaged: {error}; remove it, then run the same command again") from None


def entries_of(store: KeyedStore) -> Iterator[Entry]:
    """Yield all entries of a run's store in the order of their keys. Raises ArtifactError and StorageError."""
    keys = store.keys()
    for key in keys:
        if (value := store.get(key)) is not None:
            yield unpacked(value, store.location(key))
