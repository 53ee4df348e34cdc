"""Settings of the search tool."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from treadle.core.config import Operational
from treadle.retriever.client_config import ServiceClientSettings
from treadle.retriever.config import IndexSettings
from treadle.web.config import WebSettings

SearchRoute = Literal["local", "web", "both"]


class SearchToolSettings(IndexSettings):
    """Settings of search in a corpus, indexed in this process or served by retrieval services, and on the web."""

    service: ServiceClientSettings | None = None
    """Retrieval services to use instead of an index in this process."""
    top_n: int = Field(default=4, ge=1, le=100)
    """Documents per query."""
    document_chars: int = Field(default=1_200, ge=1)
    """Most characters of a document; a longer one is cut and ends in three dots."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Time limit of one query in seconds, retries included."""
    num_threads: Operational[int] = Field(default=2, ge=1)
    """Queries that an index in this process answers at once."""
    web: WebSettings | None = None
    """Web search, in addition to the corpus or instead of it."""
    route: Literal["auto", "local", "web", "both"] = "auto"
    """Where searches go. `auto` uses whatever is configured; with both a corpus and the web, the question decides, and
    one that does not say is searched on the web."""

    @model_validator(mode="after")
    def check_one_place(self) -> Self:
        """Refuse services combined with keys of an index in this process: one of the two would be ignored."""
        if self.service is not None:
            fields = IndexSettings.model_fields
            own = [name for name in fields if getattr(self, name) != fields[name].get_default()]
            own = [name for name in own if name != "cache_folder"]
            if own:
                raise ValueError(
                    f"search has a service and also {', '.join(own)} for an index in this process; "
                    "remove one of the two"
                )
        return self

    @model_validator(mode="after")
    def check_route(self) -> Self:
        """Refuse a route to a source that is not configured."""
        if self.route in ("web", "both") and self.web is None:
            raise ValueError(f'search.route = "{self.route}" needs the table search.web')
        if self.route in ("local", "both") and not self.has_local:
            raise ValueError(f'search.route = "{self.route}" needs a corpus, or a service that has one')
        return self

    @property
    def has_local(self) -> bool:
        """Whether there is a corpus: files, an index, or a service."""
        return bool(self.corpus or self.index_folder or self.prepared) or self.service is not None

    @property
    def uses_web(self) -> bool:
        """Whether any search uses the web."""
        return self.web is not None and self.route != "local"

    @property
    def uses_local(self) -> bool:
        """Whether any search uses a corpus, or would have to because there is no web search."""
        return self.route in ("local", "both") or not self.uses_web or (self.route == "auto" and self.has_local)

    def route_of(self, asked: str | None) -> SearchRoute:
        """Return the route of a question's searches; `asked` is the question's own choice, if any."""
        if not self.uses_web:
            return "local"
        if not self.uses_local:
            return "web"
        if self.route != "auto":
            return self.route
        return "local" if asked == "local" else "both" if asked == "both" else "web"

    def with_digests(self, key: str = "environment.search") -> Self:
        """Return the settings with digests of the corpus files and of the web record.

        Services report their digests when the run starts. `key` is the configuration key of this table.

        Raises ConfigError, DataError and ArtifactError if something is missing.
        """
        filled = self
        if self.service is None and (self.has_local or not self.uses_web):
            filled = super().with_digests(key)
        web = self.web
        if web is None or not self.uses_web or web.active_record is None:
            return filled
        from treadle.web.record.folder import record_digest

        return filled.model_copy(
            update={"web": web.model_copy(update={"record_digest": record_digest(web.active_record)})}
        )
