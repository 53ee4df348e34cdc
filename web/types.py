"""Define the data of web search: hits, page texts, and the two kinds of entries in a record."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import orjson

from treadle.core.errors import ArtifactError, ToolError

MAX_TEXT_CHARS = 50_000
"""Longest text of a page, or of a result that was recorded as text."""
MAX_HITS = 20
MAX_URL_CHARS = 2_048
MAX_TITLE_CHARS = 500
MAX_PAGE_TITLE_CHARS = 300
MAX_SNIPPET_CHARS = 5_000
MAX_NAME_CHARS = 200
"""Longest site name, date or type."""
HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = ("text/plain", "text/markdown", "application/json", "application/xml", "text/xml")
PDF_TYPE = "application/pdf"
IMPORTED = "import"
"""Value of `provider` in searches and of `reader` in pages that another program recorded."""

Language = Literal["en", "zh"]
FailureKind = Literal[
    "invalid_url",
    "blocked",
    "dns",
    "connect",
    "tls",
    "timeout",
    "http",
    "redirects",
    "too_large",
    "encoding",
    "type",
    "unreadable",
]
"""Reason why a page could not be fetched."""


class Unfetchable(Exception):
    """Page that cannot be fetched. The error stays inside this package and becomes `PageEntry.failure`."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: FailureKind = kind
        self.detail = detail


class QueryRefused(Exception):
    """Query that its provider refuses, while it accepts others.

    The error stays inside this package and becomes `SearchEntry.failure`.
    """


class RecordMiss(ToolError):
    """A replay needs an entry that its record does not have. Replays send no requests, so the stage stops."""

    retryable = False


@dataclass(frozen=True, slots=True)
class WebHit:
    """Organic hit of a search as returned by the provider, truncated to limits."""

    title: str
    url: str
    snippet: str
    site_name: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class SearchEntry:
    """Answer of a provider to a query.

    Attributes:
        key: See `keys.search_key`.
        recorded_at: UTC, ISO 8601, in seconds.
        text: Result that was recorded as text, as in imports; there are no hits then.
        failure: `refused` if the provider refuses the query; `detail` is its message.
    """

    key: str
    query: str
    language: Language
    provider: str
    hits: tuple[WebHit, ...]
    recorded_at: str
    text: str = ""
    failure: Literal["refused"] | None = None
    detail: str = ""

    def to_json(self) -> bytes:
        """Return the entry as JSON, with its kind."""
        return orjson.dumps({"kind": "search", **asdict(self)})


@dataclass(frozen=True, slots=True)
class PageEntry:
    """Text of a page, or the reason why it could not be fetched.

    Attributes:
        key: See `keys.page_key`.
        url: Requested URL in normal form (see `urls.checked_url`); `final_url` is the URL after redirects.
        text: Visible text, cleaned, at most 50,000 characters.
        reader: Program that extracted the text, with its version.
    """

    key: str
    url: str
    recorded_at: str
    final_url: str = ""
    title: str = ""
    text: str = ""
    media_type: str = ""
    failure: FailureKind | None = None
    detail: str = ""
    reader: str = ""

    def to_json(self) -> bytes:
        """Return the entry as JSON, with its kind."""
        return orjson.dumps({"kind": "page", **asdict(self)})


Entry = SearchEntry | PageEntry


def entry_from_json(value: bytes) -> Entry:
    """Read the output of `to_json`, ignoring unknown keys. Raises ArtifactError for anything else."""
    try:
        data = orjson.loads(value)
        if data["kind"] == "search":
            known = _known(SearchEntry, data)
            return SearchEntry(**{**known, "hits": tuple(WebHit(**_known(WebHit, hit)) for hit in data["hits"])})
        if data["kind"] == "page":
            return PageEntry(**_known(PageEntry, data))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"an entry of a web record cannot be read: {type(error).__name__}") from None
    raise ArtifactError("an entry of a web record is of an unknown kind")


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """Return the items of `data` that are fields of a dataclass. Raises TypeError for a value of the wrong type."""
    known = {field.name: data[field.name] for field in fields(kind) if field.name in data}
    for name, value in known.items():
        may_be_null = name == "failure"
        if name != "hits" and not isinstance(value, str) and not (may_be_null and value is None):
            raise TypeError(f"{name} is not a text")
    return known


@dataclass(frozen=True, slots=True)
class Fetched:
    """Page as fetched.

    Attributes:
        body: Body as sent, still compressed; `encoding` is its content encoding (empty, gzip, deflate).
        charset: Charset of the content type; empty if there is none.
    """

    final_url: str
    media_type: str
    charset: str
    encoding: str
    body: bytes


@dataclass(frozen=True, slots=True)
class PageText:
    """Title (at most 300 characters) and text (at most 50,000) of a page, both cleaned."""

    title: str
    text: str
    media_type: str
    reader: str


@dataclass(frozen=True, slots=True)
class WebSearchResult:
    """Result of a web search.

    Attributes:
        text: Text for the agent.
        documents: Documents for the summarizer: one JSON object per page, the snippets, or the imported text.
        sources: Keys of the entries that were used.
        recorded: Whether all entries were recorded already.
        refused: Whether nothing was found because the provider refuses the query.
    """

    text: str
    documents: tuple[str, ...]
    sources: tuple[str, ...]
    recorded: bool
    refused: bool = False
