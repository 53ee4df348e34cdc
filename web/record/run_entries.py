"""Look up the web entries behind the `sources` of a run's calls, in the run's store or in its record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path

from treadle.core.errors import ArtifactError, DataError, TreadleError
from treadle.core.runs.run import Run
from treadle.core.store.artifacts import changed_files
from treadle.core.store.roots import open_storage
from treadle.web.record.folder import RecordFolder, open_record, record_manifest
from treadle.web.record.stored_entries import WEB_STORE, unpacked
from treadle.web.types import Entry, PageEntry, SearchEntry

_MOST_SHOWN = 200
_KEY = re.compile(r"[0-9a-f]{32}")


def checked_key(key: str) -> str:
    """Return the key. Raises DataError if it is malformed."""
    if not _KEY.fullmatch(key):
        raise DataError(f"{key[:100]!r} is not the key of an entry: keys are 32 hex digits in lower case")
    return key


def recorded_in(run: Run) -> list[Path]:
    """Return the records from which a run reuses entries, by its configuration: one per environment, each once."""
    config = run.config()
    tables = [config.get("environment") or {}, *config.get("environments", {}).values()]
    webs = [table.get("search", {}).get("web") or {} for table in tables]
    places = [web["recorded_in"] for web in webs if web.get("recorded_in") and web.get("mode") != "refresh"]
    return [Path(place) for place in dict.fromkeys(places)]


def verify_web(run: Run) -> dict[str, list[str]]:
    """Return the problems of a run's web data by location: its store, and the record that it uses.

    A location without problems has an empty list; the store is left out if it is empty.
    """
    store, problems = run.store(WEB_STORE), list[str]()
    keys = list(store.keys())
    for key in keys:
        try:
            unpacked(store.get(key) or b"", store.location(key))
        except ArtifactError as error:
            problems.append(str(error))
    found = {run.key(f"store/{WEB_STORE}"): problems} if keys else {}
    for place in recorded_in(run):
        try:
            storage = open_storage(place)
            found[storage.location()] = changed_files(storage, record_manifest(storage))
        except TreadleError as error:
            found[str(place)] = [str(error)]
    return found


class RunEntries(ExitStack):
    """Entries of a run's store and of the records that the run replays or extends. Records are opened on first use."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._store = run.store(WEB_STORE)

    def get(self, key: str) -> Entry | None:
        """Return the entry with this key, or None.

        Raises DataError for a malformed key, ArtifactError and StorageError.
        """
        if (value := self._store.get(checked_key(key))) is not None:
            return unpacked(value, self._store.location(key))
        found = (record.get(key) for record in self._records)
        return next((entry for entry in found if entry is not None), None)

    def loose(self, key: str) -> SearchEntry | None:
        """Return the imported search with this loose key (see `loose_key`), or None; only records have such searches.

        Raises the same errors as `get`.
        """
        found = (record.loose(key) for record in self._records)
        return next((entry for entry in found if entry is not None), None)

    @cached_property
    def _records(self) -> list[RecordFolder]:
        return [self.enter_context(closing(open_record(place))) for place in recorded_in(self._run)]

    def addresses(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the URLs of pages by key, for the first 200 keys; a key that cannot be looked up is left out."""
        found = {}
        for key in list(dict.fromkeys(keys))[:_MOST_SHOWN]:
            try:
                entry = self.get(key)
            except TreadleError:
                continue
            if isinstance(entry, PageEntry):
                found[key] = entry.url
        return found


def shown_sources(keys: Iterable[str], addresses: Mapping[str, str]) -> list[str]:
    """Return texts for the sources of a call: the URLs of its pages, or its keys if no URL is known."""
    keys = list(keys)
    return [addresses[key] for key in keys if key in addresses] or [f"web entry {key}" for key in keys]
