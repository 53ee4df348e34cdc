"""Rollouts that search a small web on loopback, recorded and replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.servers.scripted_server import RecordedRequest
from support.servers.web_servers import ScriptedProvider, Site

from treadle.core.runs.run import Run
from treadle.web.record.stored_entries import WEB_STORE, entries_of
from treadle.web.record.table import write_record
from treadle.web.types import Entry

LOOPBACK = ("127.0.0.0/8",)


class Everywhere(dict[str, Sequence[Mapping[str, str]]]):
    """Answers of a provider that finds the same for every query."""

    def __init__(self, hits: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self._hits = hits

    def get(self, key: str, default: Any = None) -> Any:
        return self._hits


class SmallWeb:
    """A provider and a site of pages on loopback: `with SmallWeb({"moss": {"/moss": "<p>Moss is green."}}) as web:`.

    Attributes:
        provider: Finds for each query its pages, the page's text being the snippet.
        site: Has the pages.
    """

    def __init__(self, found: Mapping[str, Mapping[str, str]]) -> None:
        self.site = Site({path: html for pages in found.values() for path, html in pages.items()})
        self.provider = ScriptedProvider(
            {query: [self.hit(path, text) for path, text in pages.items()] for query, pages in found.items()}
        )
        self._stack = ExitStack()

    def hit(self, path: str, snippet: str) -> dict[str, str]:
        """Return a hit of the provider."""
        return {"title": f"About {path}", "url": self.site.url(path), "snippet": snippet}

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Return the table `environment.search.web` with which it is searched and recorded."""
        return {
            "provider": {"type": "searxng", "url": self.provider.origin, "max_queries_per_s": 1000},
            "fetch": {"allowed_networks": LOOPBACK, "reader_processes": 1},
            **changes,
        }

    @property
    def num_asked(self) -> int:
        """Requests of searches and pages so far."""
        return len(self.provider.asked) + len(self.site.requests)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.site)
        self._stack.enter_context(self.provider)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def searching(web: Mapping[str, Any], **search: Any) -> dict[str, Any]:
    """Return the environment of rollouts that search this web."""
    return {"search": {"enabled": True, "web": dict(web), **search}}


def replaying(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the table `environment.search.web` of a replay."""
    return {"mode": "replay", "recorded_in": str(folder), **changes}


def recorded(run: Run) -> list[Entry]:
    """Return what a run recorded of the web."""
    return list(entries_of(run.store(WEB_STORE)))


def exported(run: Run) -> Path:
    """Return the folder of the record of a run."""
    entries: Sequence[tuple[Entry, str | None]] = [(entry, None) for entry in recorded(run)]
    ref = write_record(run.storage, entries, made_by="test", work=run.key("work/web_record"))
    return Path(run.storage.location(ref.folder))


def said(request: RecordedRequest) -> str:
    """Return the text after the prompt."""
    return request.text.rpartition("assistant\n")[2]
