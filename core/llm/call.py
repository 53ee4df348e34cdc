"""One request of a caller on its way through the pool: what it asks, and what it has met so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from yarl import URL

from treadle.core.llm.endpoint import Endpoint
from treadle.core.llm.types import Completion
from treadle.core.llm.wire import Answer, Failure

ATTEMPTS_PER_ENDPOINT = 2
"""Failed attempts of one request on one endpoint before it prefers another."""


@dataclass(slots=True, eq=False)
class Call:
    """See the module."""

    url_of: Callable[[Endpoint], URL]
    body: bytes
    parse: Callable[[bytes], Answer]
    session: str
    deadline: float
    beside: bool = False
    """Whether this is a hedge of another call."""
    failures: int = 0
    rate_limited: int = 0
    hedged: int = 0
    kinds: set[str] = field(default_factory=set)
    per_endpoint: dict[str, int] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    """URL -> when that endpoint wants to be asked again."""
    outage_until: float | None = None
    last: str = ""
    endpoint: Endpoint | None = None
    """Where the attempt runs, then who answered."""
    sent_at: float = 0.0
    scope: asyncio.Timeout | None = None
    """Of the attempt on the wire."""
    hedges: list[asyncio.Task[None]] = field(default_factory=list)
    hedge_at: float = 0.0
    """Not hedged again before this time."""
    hedge_counted: bool = False
    """Whether its newest hedge was one of the limited number."""
    known_late: bool = False
    rescue: Answer | Failure | None = None
    """What a hedge brought."""

    @property
    def retries(self) -> int:
        """Attempts besides the first."""
        return self.failures + self.rate_limited + self.hedged

    def double(self) -> Call:
        """The same request, to be tried beside the attempt on the wire, and rather not on the same endpoint."""
        avoid = {self.endpoint.url: ATTEMPTS_PER_ENDPOINT} if self.endpoint else {}
        return Call(self.url_of, self.body, self.parse, self.session, self.deadline, beside=True, per_endpoint=avoid)

    def take_rescue(self) -> Answer:
        """The answer that a hedge brought; raises the Failure if it brought one."""
        rescue, self.rescue = self.rescue, None
        assert rescue is not None
        if isinstance(rescue, Failure):
            raise rescue
        return rescue

    def deliver(self, endpoint: Endpoint, outcome: Answer | Failure) -> None:
        """End the attempt on the wire with what a hedge brought."""
        if self.rescue is None and self.scope is not None and not self.scope.expired():
            self.rescue, self.endpoint = outcome, endpoint
            self.scope.reschedule(asyncio.get_running_loop().time())

    def completion(self, answer: Answer, endpoint: Endpoint, seconds: float) -> Completion:
        """What the caller gets."""
        return Completion(
            text=answer.text,
            token_ids=answer.token_ids,
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            endpoint=endpoint.url,
            seconds=seconds,
            retries=self.retries,
        )


def completions_url(endpoint: Endpoint) -> URL:
    """Where an endpoint completes prompts."""
    return endpoint.target.completions


def chat_url(endpoint: Endpoint) -> URL:
    """Where an endpoint answers chats."""
    return endpoint.target.chat
