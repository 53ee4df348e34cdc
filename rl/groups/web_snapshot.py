"""Snapshot the web results that a run has stored so far, as a record that the engine's process replays.

An engine's process cannot write to the run's store and sends no web requests. Documented in docs/behaviour/rl.md.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage
from treadle.environments.settings import EnvironmentSettings
from treadle.web.record.folder import open_record
from treadle.web.record.stored_entries import WEB_STORE, entries_of
from treadle.web.record.table import write_record
from treadle.web.types import Entry

_ARTIFACTS = "artifacts/web_record"
_Pairs = Iterator[tuple[Entry, str | None]]
"""Entries sorted by key, each with its loose key (a digest of the query's words alone), or None."""


def replayed(
    settings: EnvironmentSettings, store: Callable[[str], KeyedStore], folder: Path
) -> tuple[EnvironmentSettings, str]:
    """Return the environment with web access set to replay, and the digest of the replayed record.

    The digest is empty if the environment does not search the web. In mode `replay`, the settings are returned
    unchanged. In any other mode, the entries of the run's own store and of the record that the run started with are
    written to `folder` once, so that all attempts at a training see the same entries. Raises TreadleError if they
    cannot be read.
    """
    search = settings.search_tool
    web = search.web if search is not None and settings.searches_web else None
    if search is None or web is None:
        return settings, ""
    if web.mode == "replay":
        return settings, web.record_digest or ""
    made = sorted((folder / _ARTIFACTS).glob("*/artifact.json"))
    if made:
        record = made[0].parent
    else:
        with contextlib.ExitStack() as stack:
            sources: list[_Pairs] = [((entry, None) for entry in entries_of(store(WEB_STORE)))]
            if web.active_record is not None:
                sources.append(stack.enter_context(contextlib.closing(open_record(web.active_record))).entries())
            ref = write_record(LocalStorage(folder), _merged(*sources), made_by="rl", work="work")
        record = folder / ref.folder
    with contextlib.closing(open_record(record)) as opened:
        digest = opened.digest
    given = {"mode": "replay", "recorded_in": record, "record_digest": digest}
    replaying = search.model_copy(update={"web": web.model_copy(update=given)})
    return settings.with_search(replaying), digest


def _merged(*sources: _Pairs) -> _Pairs:
    """Yield the entries of all sources, sorted by key, each with its loose key or None.

    Of entries with equal keys, keep that of the first source, with the first loose key that any of them has.
    """
    pairs = heapq.merge(*sources, key=lambda pair: pair[0].key)
    for _, same in itertools.groupby(pairs, key=lambda pair: pair[0].key):
        (entry, loose), *others = same
        yield entry, next(filter(None, (loose, *(other for _, other in others))), None)
