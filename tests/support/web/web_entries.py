"""Entries of a web record for tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from treadle.core.store import artifacts
from treadle.core.store.artifacts import parse_manifest
from treadle.core.store.storage import LocalStorage
from treadle.web.keys import page_key, search_key
from treadle.web.record.table import write_record
from treadle.web.types import Entry, FailureKind, Language, PageEntry, SearchEntry, WebHit

RECORDED_AT = "2026-05-01T12:00:00+00:00"


def search_of(
    query: str, *, provider: str = "searxng", language: Language = "en", text: str = "", recorded_at: str = RECORDED_AT
) -> SearchEntry:
    """Return a search with one hit, or one that was imported with a ready-made text."""
    hits = (
        () if text else (WebHit(f"About {query}", "http://site.test/", f"All of {query}", "site.test", "2026-01-02"),)
    )
    return SearchEntry(search_key(query, language), query, language, provider, hits, recorded_at, text)


def page_of(
    url: str, text: str = "Text.", *, failure: FailureKind | None = None, recorded_at: str = RECORDED_AT
) -> PageEntry:
    """Return a page with a text, or one that could not be fetched."""
    if failure is not None:
        return PageEntry(page_key(url), url, recorded_at, failure=failure, detail="in words")
    return PageEntry(
        page_key(url), url, recorded_at, final_url=url, title="Title", text=text, media_type="text/html", reader="r 1"
    )


def record_in(root: Path, *entries: Entry, loose: dict[str, str] | None = None) -> Path:
    """Return the folder of an artifact with these entries; `loose`: key -> loose key."""
    pairs = [(entry, (loose or {}).get(entry.key)) for entry in sorted(entries, key=lambda entry: entry.key)]
    ref = write_record(LocalStorage(root), pairs, made_by="test", work="work")
    return root / ref.folder


def sealed(folder: Path) -> Path:
    """Return a record whose table was changed, with digests that are right."""
    part = folder / "data/part-00000.parquet"
    old = parse_manifest((folder / "artifact.json").read_bytes(), "")
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    (entry,) = old.files
    files = (entry.model_copy(update={"sha256": digest, "num_bytes": part.stat().st_size}),)
    new = old.model_copy(update={"files": files, "digest": artifacts._digest(files)})
    (folder / "artifact.json").write_bytes(new.model_dump_json().encode())
    return folder
