"""One request on its way through the pool: its content for the model's servers, its attempts and its hedges."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from treadle.core.chat import ChatTokenizer
from treadle.core.llm.checks import PromptFacts, checked, prompt_facts
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.endpoint import Endpoint
from treadle.core.llm.failures import Failure
from treadle.core.llm.hosted import (
    MAX_STOPS,
    SYSTEM,
    WHOLE_TOP_P,
    fold_system,
    leave_out_whole_top_p,
    refused_keys,
    refuses_system,
)
from treadle.core.llm.prompt_scores import parse_scored
from treadle.core.llm.stops import KEPT, lacks_stop
from treadle.core.llm.types import Completion, CompletionRequest, ServerFacts
from treadle.core.llm.wire import Answer, chat_body, completion_body, num_images, parse_chat, parse_completion
from treadle.core.work_clock import TimeLimit, WorkClock, work_clock

ATTEMPTS_PER_ENDPOINT = 2
"""Failed attempts of a request on one endpoint before another one is preferred."""

_IMAGE_TOKENS = 65_536
"""Upper bound of the tokens of a picture, whatever the size of its file."""


@dataclass(slots=True, eq=False)
class PoolCall:
    """Request of a caller, with the state of its attempts. Times are the event loop's unless noted."""

    route: Literal["completions", "chat"]
    body: bytes
    session: str
    deadline: float
    """Time at which to give up, on `clock`."""
    asked: PromptFacts | None = None
    """Request data that the answer is checked against; None if unknown."""
    scored: tuple[int, ...] | None = None
    """Ids of the prompt whose log-probabilities the answer must have; None for none."""
    clock: WorkClock = field(default_factory=work_clock)
    """Clock of the work that sends the request."""
    is_hedge: bool = False
    """Whether this is a hedge: a copy of a late call, sent in parallel to it."""
    failures: int = 0
    rate_limited: int = 0
    hedged: int = 0
    failed_hedges: int = 0
    """Failed hedges of the current attempt."""
    kinds: set[str] = field(default_factory=set)
    per_endpoint: dict[str, int] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    """URL -> time before which that endpoint is not asked again."""
    outage_until: float | None = None
    last: str = ""
    odd: tuple[str, ...] = ()
    """Oddities of the malformed answers so far, in order."""
    endpoint: Endpoint | None = None
    """Endpoint of the current attempt; at the end, the one that answered."""
    sent_at: float = 0.0
    limit: TimeLimit | None = None
    """Time limit of the attempt on the wire."""
    hedges: list[asyncio.Task[None]] = field(default_factory=list)
    hedge_at: float = 0.0
    """Time before which it is not hedged again."""
    hedge_counted: bool = False
    """Whether its latest hedge used some of the pool's budget of hedges."""
    hedge_result: Answer | Failure | None = None
    """Result of a hedge."""

    @property
    def retries(self) -> int:
        """Number of attempts after the first."""
        return self.failures + self.rate_limited + self.hedged

    def hedge_copy(self) -> PoolCall:
        """Return the same request for a parallel attempt, if possible on another endpoint."""
        avoid = {self.endpoint.url: ATTEMPTS_PER_ENDPOINT} if self.endpoint else {}
        return PoolCall(
            self.route,
            self.body,
            self.session,
            float("inf"),  # It ends with the attempt that it backs up.
            self.asked,
            self.scored,
            WorkClock(),
            is_hedge=True,
            per_endpoint=avoid,
        )

    def adapt(self, status: int, data: bytes) -> str | None:
        """Change the body so that a refusal no longer applies; return the refused key, None if that is not possible.

        These are refusals that the preflight does not see: it asks with other values, and without a system message.
        """
        refused = [WHOLE_TOP_P] if WHOLE_TOP_P in refused_keys(status, data) else []
        refused += [SYSTEM] if self.route == "chat" and refuses_system(status, data) else []
        if not refused:
            return None
        body = orjson.loads(self.body)
        before = orjson.dumps(body)
        leave_out_whole_top_p(body, refused)
        fold_system(body, refused)
        self.body = orjson.dumps(body)
        return refused[0] if self.body != before else None

    def read(self, data: bytes) -> Answer:
        """Parse the body of a reply and check the answer; raise Failure if it is unusable."""
        if self.scored is not None:
            answer = parse_scored(data, self.scored)
        else:
            answer = (parse_chat if self.route == "chat" else parse_completion)(data)
        return answer if self.asked is None else checked(answer, self.asked)

    def take_hedge_result(self) -> Answer:
        """Return the answer of a hedge, or raise its Failure."""
        hedge_result, self.hedge_result = self.hedge_result, None
        assert hedge_result is not None
        if isinstance(hedge_result, Failure):
            raise hedge_result
        return hedge_result

    def deliver(self, endpoint: Endpoint, outcome: Answer | Failure, sent_at: float) -> None:
        """End the attempt on the wire with the result of a hedge, which was sent at `sent_at` in event loop time.

        The time before `sent_at` does not count on the work clock: the late server caused it, as in a failed attempt.
        """
        if self.hedge_result is None and self.limit is not None and not self.limit.expired():
            self.hedge_result, self.endpoint = outcome, endpoint
            self.clock.exclude(self.sent_at, sent_at)
            self.limit.end_now()

    def completion(self, answer: Answer, endpoint: Endpoint, seconds: float) -> Completion:
        """Return the Completion for the caller; `seconds` is the time since the call."""
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
            stop_dropped=self._lacks_stop(answer, endpoint),
            notes=self.odd + answer.notes,
            tool_calls=answer.tool_calls,
            reasoning=answer.reasoning,
            prompt_logprobs=answer.prompt_logprobs,
        )

    def _lacks_stop(self, answer: Answer, endpoint: Endpoint) -> bool:
        asked = self.asked
        if asked is None:
            return False
        styles = asked.stop_styles
        return lacks_stop(answer, asked.stops, KEPT if styles is None else styles.get(endpoint.url, KEPT))


def completion_call(
    settings: ModelSettings,
    facts: ServerFacts | None,
    vocabulary: ChatTokenizer | None,
    request: CompletionRequest,
    want_ids: bool,
    session: str,
    deadline: float,
) -> PoolCall:
    """Return the call for a completion in the form that the model's servers accept.

    `facts` is the result of the preflight; None if there was none.
    """
    refused, styles = (facts.refused_keys, facts.stops) if facts is not None else ((), None)
    body = completion_body(settings.model, request, want_ids, extra=settings.extra_body, refused=refused)
    asked = prompt_facts(settings.model, request.prompt, request.max_tokens, request.stop, vocabulary, styles)
    scored = tuple(request.prompt) if request.scores_prompt and isinstance(request.prompt, list) else None
    return PoolCall("completions", body, session, deadline, asked, scored)


def chat_call(
    settings: ModelSettings,
    facts: ServerFacts | None,
    messages: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    seed: int,
    session: str,
    deadline: float,
    *,
    stop: Sequence[str] = (),
    tools: Sequence[Mapping[str, Any]] = (),
) -> PoolCall:
    """Return the call for an answer to messages, like `completion_call`; `tools` are as OpenAI takes them."""
    chat_only = settings.api == "chat"
    refused, styles = (facts.refused_keys, facts.stops) if facts is not None else ((), None)
    extra = settings.extra_body
    body = chat_body(
        settings.model, messages, sampling, seed, stop, tools=tools, chat_only=chat_only, refused=refused, extra=extra
    )
    if images := num_images(messages):
        num_bytes = len(body) + images * _IMAGE_TOKENS
    elif tools or any("tool_calls" in message for message in messages):
        num_bytes = len(body)
    else:
        num_bytes = sum(len((message["content"] or "").encode("utf-8", "replace")) for message in messages)
    # Stop strings that are not sent cannot end the answer.
    sent = tuple(stop) if not chat_only else () if "stop" in refused else tuple(stop[:MAX_STOPS])
    asked = PromptFacts(settings.model, sampling.max_tokens, sent, num_bytes=num_bytes, stop_styles=styles)
    return PoolCall("chat", body, session, deadline, asked)
