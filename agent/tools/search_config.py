"""Settings of the search tool."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from treadle.agent.web.config import WebSettings
from treadle.core.config import Added, Operational
from treadle.retriever.client_config import ServiceClientSettings
from treadle.retriever.config import IndexSettings


class SearchToolSettings(IndexSettings):
    """Search over a corpus, indexed in this process or held by services."""

    service: ServiceClientSettings | None = None
    """Services to ask instead of an index in this process."""
    top_n: int = Field(default=4, ge=1, le=100)
    """Documents per query."""
    document_chars: int = Field(default=1_200, ge=1)
    """A longer document is cut to so many characters, marked by three dots."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for one query, retries included."""
    num_threads: Operational[int] = Field(default=2, ge=1)
    """Queries that an index in this process answers at once."""
    web: Added[WebSettings | None] = None
    """Search of the web, beside the corpus or in its place."""
    route: Added[Literal["auto", "local", "web", "both"]] = "auto"
    """Where searches go. `auto`: where there is something to search; with both a corpus and the web, as the question
    says, and to the web where it does not."""

    @model_validator(mode="after")
    def check_one_place(self) -> Self:
        """Refuse services together with keys of an index of one's own: one of the two would be ignored."""
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

    def with_digests(self) -> Self:
        """Fill in the content of the corpus files; services tell theirs when the run starts."""
        return self if self.service is not None else super().with_digests()
