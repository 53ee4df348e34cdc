"""Encode web entries as values of a run's store: truncated and compressed, and validated when read."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TypeVar

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
    PageEntry,
    SearchEntry,
    WebHit,
    entry_from_json,
)

T_Part = TypeVar("T_Part", SearchEntry, PageEntry, WebHit)

WEB_STORE = "web"
"""Name of the store in which a run keeps its web entries."""

_MAX_CHARS = {
    "query": 5_000,
    "url": MAX_URL_CHARS,
    "final_url": MAX_URL_CHARS,
    "title": MAX_TITLE_CHARS,
    "text": MAX_TEXT_CHARS,
    "snippet": MAX_SNIPPET_CHARS,
    "detail": 500,
    **dict.fromkeys(("provider", "recorded_at", "media_type", "reader", "site_name", "date"), MAX_NAME_CHARS),
}
"""Longest texts of entries and hits, by field."""
_FORMAT = b"1"
# Twice the size of a search of 20 hits whose characters all need 6 bytes of JSON.
_MAX_BYTES = 2 * 1024 * 1024


def bounded(entry: Entry) -> Entry:
    """Return the entry with its texts truncated to their limits and encodable in UTF-8."""
    if isinstance(entry, SearchEntry):
        return replace(_cut(entry), hits=tuple(map(_cut, entry.hits[:MAX_HITS])))
    return _cut(entry)


def _cut(part: T_Part) -> T_Part:
    """Return an entry or a hit with its texts truncated."""
    limits = {field.name: _MAX_CHARS[field.name] for field in fields(part) if field.name in _MAX_CHARS}
    texts = {name: getattr(part, name)[:most].encode("utf-8", "replace").decode() for name, most in limits.items()}
    return replace(part, **texts)


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
    for key in store.keys():  # noqa: SIM118 - a store is no mapping
        if (value := store.get(key)) is not None:
            yield unpacked(value, store.location(key))
