"""What comes from the web: hits of a search, texts of pages, and the two kinds of entries that a record keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol

import orjson

from treadle.core.errors import ArtifactError, ToolError

MAX_TEXT_CHARS = 50_000
"""Of a page, or of a result that was recorded ready-made."""
MAX_HITS = 20
MAX_URL_CHARS = 2_048
MAX_TITLE_CHARS = 500
MAX_PAGE_TITLE_CHARS = 300
MAX_SNIPPET_CHARS = 5_000
MAX_NAME_CHARS = 200
"""Of a site's name, a date, a type."""
IMPORTED = "import"
"""Provider of searches, and reader of pages, that another program recorded."""

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
"""Why a page could not be had."""


class Unfetchable(Exception):
    """A page that cannot be had. It never leaves this package: it becomes `PageEntry.failure`."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: FailureKind = kind
        self.detail = detail


class QueryRefused(Exception):
    """A query that its provider does not take, though it takes others.

    It never leaves this package: it becomes `SearchEntry.failure`.
    """


class RecordMiss(ToolError):
    """A replay is asked for something that its record does not hold; it asks nobody, so the stage stops."""

    retryable = False


@dataclass(frozen=True, slots=True)
class WebHit:
    """One organic hit of a search, as the provider gave it, cut to bounds."""

    title: str
    url: str
    snippet: str
    site_name: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class SearchEntry:
    """What a provider answered to a query.

    Attributes:
        key: See `keys.search_key`.
        recorded_at: UTC, ISO 8601, seconds.
        text: A result that was recorded ready-made, as imports have it; then there are no hits.
        failure: `refused` where the provider does not take the query; `detail` is what it said.
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
        """JSON, with its kind."""
        return orjson.dumps({"kind": "search", **asdict(self)})


@dataclass(frozen=True, slots=True)
class PageEntry:
    """The text of a page, or why it could not be had.

    Attributes:
        key: See `keys.page_key`.
        url: In normal form, as it was asked for (see `urls.checked_url`); `final_url` is where redirects led.
        text: Visible text, cleaned, at most 50,000 characters.
        reader: What made the text, with its version.
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
        """JSON, with its kind."""
        return orjson.dumps({"kind": "page", **asdict(self)})


Entry = SearchEntry | PageEntry


def entry_from_json(value: bytes) -> Entry:
    """What `to_json` wrote; unknown keys are passed over. Raises ArtifactError for anything else."""
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
    """The fields of a dataclass; raises TypeError for a value that is not of the kind that it has."""
    known = {field.name: data[field.name] for field in fields(kind) if field.name in data}
    for name, value in known.items():
        may_be_null = name == "failure"
        if name != "hits" and not isinstance(value, str) and not (may_be_null and value is None):
            raise TypeError(f"{name} is no text")
    return known


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page as it came.

    Attributes:
        body: As sent, still packed; `encoding` is its content encoding (empty, gzip, deflate).
        charset: Of the content type; empty where there is none.
    """

    final_url: str
    media_type: str
    charset: str
    encoding: str
    body: bytes


@dataclass(frozen=True, slots=True)
class PageText:
    """What is legible of a page: title of at most 300 characters, text of at most 50,000, both cleaned."""

    title: str
    text: str
    media_type: str
    reader: str


class Provider(Protocol):
    """Who finds pages for a query. Used by many searches at once on one event loop."""

    name: str
    """As in `SearchEntry.provider`."""

    async def search(self, query: str, language: Language, *, deadline: float) -> tuple[WebHit, ...]:
        """At most 20 hits, best first; none where several answers in a row had none.

        `deadline` is in the event loop's clock. Raises QueryRefused where the provider refuses this query and takes
        others; SearchUnavailable where the deadline comes or errors go on; ToolError where the provider refuses all
        keys, or any request.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@dataclass(frozen=True, slots=True)
class WebFound:
    """What a search of the web comes to.

    Attributes:
        text: For the agent.
        documents: For the summarizer, one JSON object each.
        sources: Keys of the entries that were used.
        recorded: Whether all of them were on record already.
        refused: Whether nothing was found because the provider does not take the query.
    """

    text: str
    documents: tuple[str, ...]
    sources: tuple[str, ...]
    recorded: bool
    refused: bool = False
