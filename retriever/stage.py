"""Stage `index`: the search index of a run, built before anything expensive starts.

The artifact names and describes the index; its files lie in the cache of each machine, under a name that follows from
the same facts, and are built again where they are missing. See docs/behaviour/retrieval.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from treadle.core.schemas import INDEXES
from treadle.core.stage import Progress, Stage, StageContext
from treadle.retriever.config import IndexSettings
from treadle.retriever.opening import open_index


def run_index(context: StageContext) -> Mapping[str, Any]:
    """Build or find the index of the settings and write one row about it."""
    settings: IndexSettings = context.settings
    with open_index(settings, Steps(context.progress)) as index:
        info = index.info
        identity = info.metadata["identity"]
        context.write(
            "indexes",
            [
                {
                    "fingerprint": info.fingerprint,
                    "engine": info.engine,
                    "num_documents": info.num_documents,
                    "encoder": info.encoder,
                    "dimension": info.dimension,
                    "corpus_sha256": identity["corpus_sha256"],
                    "identity": orjson.dumps(identity, option=orjson.OPT_SORT_KEYS).decode(),
                }
            ],
        )
        return {"num_documents": info.num_documents, "num_bytes": info.num_bytes}


class Steps:
    """Shows the counts of a builder as steps of progress; what `open_index` may be told to notify."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """So many documents are done of what is being made now."""
        if what not in self._done:
            self._progress.start(total or 0, 0, what)
        self._progress.advance(done - self._done.get(what, 0))
        self._done[what] = done


INDEX = Stage(name="index", version=1, settings=IndexSettings, produces=(INDEXES,), run=run_index)
