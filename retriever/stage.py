"""Implement the stage `index`: build the search index of a run before anything expensive starts.

The artifact names and describes the index. Its files are kept in the cache of each machine, in a folder named by the
same identity, and are built again if they are missing. See docs/behaviour/retrieval.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from treadle.core.runs.stage import Progress, StageContext
from treadle.retriever.config import IndexSettings
from treadle.retriever.open_index import open_index


def run_index(context: StageContext) -> Mapping[str, Any]:
    """Build or find the index of the settings, and write one row about it."""
    settings: IndexSettings = context.settings
    with open_index(settings, IndexProgress(context.progress)) as index:
        info = index.info
        identity = info.metadata["identity"]
        names = ("fingerprint", "engine", "num_documents", "encoder", "dimension")
        row: dict[str, Any] = {name: getattr(info, name) for name in names}
        row["corpus_sha256"] = identity["corpus_sha256"]
        row["identity"] = orjson.dumps(identity, option=orjson.OPT_SORT_KEYS).decode()
        context.write("indexes", [row])
        return {"num_documents": info.num_documents, "num_bytes": info.num_bytes}


class IndexProgress:
    """A progress callback for `open_index` that shows each step of a build as progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Report that `done` documents are finished in the current step."""
        if what not in self._done:
            self._progress.start(total or 0, 0, what)
        self._progress.advance(done - self._done.get(what, 0))
        self._done[what] = done
