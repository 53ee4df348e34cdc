"""The endpoints of one model as one thing that completes requests, or says in bounded time that it cannot.

Which endpoint, how often, how long: placement keeps a question on one server (its prefix cache), failures are retried
by class, and every wait ends at a deadline. The rules are in `docs/behaviour/llm.md`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from treadle.core.errors import ConfigError, ContextTooLong, DeadlineExceeded, EndpointUnavailable, ModelError
from treadle.core.llm.call import ATTEMPTS_PER_ENDPOINT, Call, chat_url, completions_url
from treadle.core.llm.client import HttpClient
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.endpoint import Endpoint
from treadle.core.llm.hedge import Hedges
from treadle.core.llm.outage import Outages
from treadle.core.llm.preflight import Vocabulary, inspect_endpoints
from treadle.core.llm.types import Completion, CompletionRequest, PoolStats, ServerFacts
from treadle.core.llm.wire import (
    FINAL_KINDS,
    Answer,
    Failure,
    chat_body,
    completion_body,
    failure_of,
    parse_chat,
    parse_completion,
)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]


class ModelPool:
    """Use as an async context manager; `complete` and `chat` may be called by thousands of tasks of one loop.

    Attributes:
        name: The model's name in the configuration, for messages.
        stats: Running counts.
        facts: What `check` found out, None before.
    """

    def __init__(self, name: str, settings: ModelSettings, *, seed: int = 0, sleep: Sleep = asyncio.sleep) -> None:
        """`seed` feeds the jitter of pauses only; `sleep` is replaced in tests."""
        self.name = name
        self.settings = settings
        self.stats = PoolStats()
        self.facts: ServerFacts | None = None
        self._random = random.Random(seed)
        self._sleep = sleep
        self._endpoints: list[Endpoint] = []
        self._by_url: dict[str, Endpoint] = {}
        self._http: HttpClient | None = None
        self._scopes: set[asyncio.Timeout] = set()
        self._outages = Outages(name, settings, self._endpoints, self._ask_models, self._random)
        self._hedges = Hedges(settings.hedge_floor_s, settings.retry_limit + 1)
        self._watch: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        if not self.settings.endpoints:
            raise ConfigError(f"models.{self.name} has no endpoints; give their URLs, or a server to start")
        self._endpoints += [Endpoint(item, self.settings.max_in_flight) for item in self.settings.endpoints]
        self._by_url = {endpoint.url: endpoint for endpoint in self._endpoints}
        self._http = HttpClient(self.settings)
        watch = self._hedges.watch(self._note_late, self._hedge)
        self._watch = asyncio.get_running_loop().create_task(watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cut off every request in flight or waiting (they raise EndpointUnavailable), then close connections."""
        self._closing = True
        await self._outages.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)
        if self._http is not None:
            await asyncio.gather(*(endpoint.wait_idle() for endpoint in self._endpoints))
            await self._http.close()

    async def check(self, vocabulary: Vocabulary | None = None) -> ServerFacts:
        """Preflight: every endpoint answers, serves the model, and agrees with the configuration.

        Sends each endpoint GET /models and one request for one token; where ids are used and the server tells those of
        its prompts, one more, whose ids have to be those of `vocabulary`. Raises ConfigError or EndpointUnavailable
        with one line naming the endpoint.
        """
        targets = [endpoint.target for endpoint in self._endpoints]
        self.facts = await inspect_endpoints(self._client(), self.name, self.settings, targets, self._sleep, vocabulary)
        return self.facts

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Complete a prompt.

        Args:
            request: What to ask.
            session: Requests with the same one stay on one endpoint; empty means the least loaded.
            deadline: When to give up, in the event loop's time.

        Raises:
            ContextTooLong: The prompt does not fit; was asked once.
            DeadlineExceeded: The deadline came while a healthy server was working.
            EndpointUnavailable: Servers kept failing until retries, waiting time or the deadline ran out, or the pool
                was closed; the work is owed.
            ModelError: The server refuses the request or answers with something unusable.
        """
        want_ids = self.settings.token_ids != "off" and isinstance(request.prompt, list)
        body = completion_body(self.settings.model, request, want_ids)
        del request  # While it waits the body says it all.
        completion = await self._call(Call(completions_url, body, parse_completion, session, deadline))
        if want_ids and completion.token_ids is None and self._ids_promised():
            raise ModelError(
                f"models.{self.name}: {completion.endpoint} returned no token ids; use a server that can (vLLM: "
                'return_token_ids), or set token_ids = "off"'
            )
        return completion

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
    ) -> Completion:
        """Like `complete` over the chat route: the server renders the messages, and there are no token ids."""
        chat_only = self.settings.api == "chat"
        refused = self.facts.refused_keys if self.facts is not None else ()
        body = chat_body(self.settings.model, messages, sampling, seed, stop, chat_only=chat_only, refused=refused)
        return await self._call(Call(chat_url, body, parse_chat, session, deadline))

    def states(self) -> dict[str, str]:
        """URL -> `healthy`, `trial` (just back), `draining` or `down`."""
        return {endpoint.url: endpoint.health.value for endpoint in self._endpoints}

    async def drain(self, url: str) -> None:
        """Place nothing new on one endpoint and return when it is idle; sessions move until `resume`."""
        endpoint = self._by_url[url.rstrip("/")]
        endpoint.drain()
        self._outages.refresh()
        await endpoint.wait_idle()

    def resume(self, url: str) -> None:
        """End a drain."""
        self._by_url[url.rstrip("/")].resume()
        self._outages.refresh()

    def _ids_promised(self) -> bool:
        return self.settings.token_ids == "required" or (self.facts is not None and self.facts.token_ids)

    async def _call(self, call: Call) -> Completion:
        started = asyncio.get_running_loop().time()
        self.stats.requests += 1
        while True:
            endpoint = self._place(call)
            if endpoint is None:
                await self._wait_for_endpoint(call)
                continue
            try:
                answer = await self._attempt(endpoint, call)
            except Failure as failure:
                await self._pause(self._after_failure(failure, call.endpoint or endpoint, call), call)
                continue
            if answer is not None:
                return self._completion(answer, call.endpoint or endpoint, started, call)

    def _completion(self, answer: Answer, endpoint: Endpoint, started: float, call: Call) -> Completion:
        self.stats.completions += 1
        self.stats.prompt_tokens += answer.prompt_tokens
        self.stats.completion_tokens += answer.completion_tokens
        return call.completion(answer, endpoint, asyncio.get_running_loop().time() - started)

    def _place(self, call: Call) -> Endpoint | None:
        """The endpoint for the next attempt: the session's home unless it is down, told to wait or has failed twice."""
        usable = [endpoint for endpoint in self._endpoints if endpoint.usable]
        if len(usable) < 2:
            return usable[0] if usable else None
        tried, waits = call.per_endpoint, call.waits
        candidates = [item for item in usable if tried.get(item.url, 0) < ATTEMPTS_PER_ENDPOINT]
        if not candidates:
            tried.clear()
            candidates = usable
        now = asyncio.get_running_loop().time()
        ready = [item for item in candidates if item.paused_until <= now and waits.get(item.url, now) <= now]
        if not ready:
            return min(candidates, key=lambda item: max(item.paused_until, waits.get(item.url, now)))
        if not call.session:
            return min(ready, key=lambda endpoint: endpoint.load)
        key = call.session.encode("utf-8", "surrogatepass")
        return max(ready, key=lambda endpoint: endpoint.rank(key))

    async def _attempt(self, endpoint: Endpoint, call: Call) -> Answer | None:
        """One request; returns the answer, or None if the endpoint went away while it waited for a slot."""
        if call.waits and (own := call.waits.pop(endpoint.url, 0.0)):
            await self._pause(own - asyncio.get_running_loop().time(), call)
        if not endpoint.try_acquire():
            try:
                if not await self._bounded(endpoint.acquire(first=call.beside), call.deadline):
                    return None
            except TimeoutError:
                cause = call.last or f"models.{self.name}"
                raise EndpointUnavailable(f"{cause}: no free slot on {endpoint.url} before the deadline") from None
        try:
            now = asyncio.get_running_loop().time()
            if endpoint.paused_until > now:
                await self._pause(endpoint.paused_until - now, call)
            return await self._send(endpoint, call)
        finally:
            endpoint.release()

    async def _send(self, endpoint: Endpoint, call: Call) -> Answer:
        sent_at = asyncio.get_running_loop().time()
        if sent_at >= call.deadline:
            raise self._out_of_time(call, "before the request was sent")
        limit = sent_at + self.settings.request_timeout_s
        stats = self.stats
        stats.in_flight += 1
        stats.peak_in_flight = max(stats.peak_in_flight, stats.in_flight)
        self._hedges.sent(call, endpoint, sent_at)
        try:
            exchange = self._client().post(call.url_of(endpoint), call.body, endpoint.target.headers)
            status, headers, data = await self._bounded(exchange, min(call.deadline, limit), call)
        except TimeoutError:
            if call.rescue is not None:
                return call.take_rescue()
            if call.deadline <= limit:
                raise self._out_of_time(call, f"waiting for {endpoint.url}") from None
            raise Failure("timeout", f"no answer within {self.settings.request_timeout_s:g} s") from None
        finally:
            stats.in_flight -= 1
            self._hedges.ended(call)
        endpoint.alive_at = asyncio.get_running_loop().time()
        if status != 200:
            raise self._refusal(endpoint, failure_of(status, headers, data), status)
        answer = call.parse(data)
        self._outages.note_success(endpoint, sent_at)
        self._hedges.answered(endpoint.alive_at - sent_at)
        return answer

    def _refusal(self, endpoint: Endpoint, failure: Failure, status: int) -> Failure:
        if status in (429, 503):
            endpoint.refused(endpoint.alive_at + max(self._backoff(1), failure.retry_after_s or 0.0))
        return failure

    def _note_late(self, call: Call, endpoint: Endpoint) -> None:
        # Where others get answers it says nothing: some answers are longer than others.
        if not endpoint.silent and endpoint.alive_at < call.sent_at:
            endpoint.silent = endpoint.usable
            self._outages.note_fault(endpoint, f"no answer within {self._hedges.threshold_s:.3g} s", at_once=True)

    async def _hedge(self, late: Call) -> None:
        """Try a late call a second time beside the first, elsewhere if possible; deliver what ends it."""
        call = late.double()
        endpoint = self._place(call)
        if endpoint is None:
            return self._hedges.postpone(late)
        late.hedged += 1
        self.stats.retries["late"] += 1
        again_at = asyncio.get_running_loop().time() + self._backoff(late.hedged)
        try:
            outcome: Answer | Failure | None = await self._attempt(endpoint, call)
        except (EndpointUnavailable, DeadlineExceeded):
            return
        except Failure as failure:
            if failure.kind not in FINAL_KINDS:
                if failure.kind != "rate_limit":
                    self._outages.note_fault(endpoint, str(failure), at_once=failure.kind == "connect")
                late.hedge_at = min(late.hedge_at, again_at)
                return
            outcome = failure
        if outcome is not None:
            late.deliver(endpoint, outcome)

    def _after_failure(self, failure: Failure, endpoint: Endpoint, call: Call) -> float:
        """Book a failed attempt; returns the pause before the next one, or raises what ends the request."""
        message = f"models.{self.name}: {endpoint.url}: {failure}"
        if failure.kind in FINAL_KINDS:
            self._outages.note_success(endpoint, call.sent_at)
            raise (ContextTooLong if failure.kind == "context" else ModelError)(message) from failure
        call.last = message
        call.kinds.add(failure.kind)
        if failure.kind == "rate_limit":
            endpoint.last_error = str(failure)
            call.rate_limited += 1
            if call.rate_limited > self.settings.rate_limit_retries:
                raise EndpointUnavailable(f"{message}; gave up after {call.retries} attempts") from failure
            self.stats.retries[failure.kind] += 1
            pause = max(self._backoff(call.rate_limited), failure.retry_after_s or 0.0)
            call.waits[endpoint.url] = asyncio.get_running_loop().time() + pause
            return 0.0
        return self._after_fault(failure, endpoint, call)

    def _after_fault(self, failure: Failure, endpoint: Endpoint, call: Call) -> float:
        """The same for failures that speak against the endpoint's health."""
        self._outages.note_fault(endpoint, str(failure), at_once=failure.kind == "connect")
        call.failures += 1
        tried = call.per_endpoint[endpoint.url] = call.per_endpoint.get(endpoint.url, 0) + 1
        if call.failures > self.settings.retry_limit + len(self._endpoints) - 1:
            kind = ModelError if call.kinds == {"malformed"} else EndpointUnavailable
            raise kind(f"{call.last}; gave up after {call.retries} attempts") from failure
        self.stats.retries[failure.kind] += 1
        # A refused connection goes elsewhere at once, or waits for the endpoint's return. A reset looks like an idle
        # connection that the server closed: nothing is wrong with it. Where others could serve as well, a single
        # failure of a server that answers otherwise costs no pause either: the next attempt but one goes elsewhere.
        single = failure.retry_after_s is None and endpoint.failures_in_a_row <= 1 and len(self._endpoints) > 1
        if failure.kind == "connect" or (tried == 1 and (failure.kind == "reset" or single)):
            return 0.0
        return max(self._backoff(call.failures), failure.retry_after_s or 0.0)

    def _backoff(self, count: int) -> float:
        pause = min(self.settings.backoff_max_s, self.settings.backoff_base_s * 2.0 ** min(count - 1, 30))
        return pause * self._random.uniform(0.5, 1.0)

    async def _pause(self, seconds: float, call: Call) -> None:
        if seconds <= 0:
            return
        if asyncio.get_running_loop().time() + seconds >= call.deadline:
            cause = call.last or self._outages.describe()
            raise EndpointUnavailable(f"{cause}; the next attempt would be past the deadline")
        try:
            await self._bounded(self._sleep(seconds), call.deadline)
        except TimeoutError:
            raise self._out_of_time(call, "between attempts") from None

    async def _wait_for_endpoint(self, call: Call) -> None:
        """Return when an endpoint is back; raises EndpointUnavailable after `outage_wait_s` or at the deadline."""
        if call.outage_until is None:
            call.outage_until = asyncio.get_running_loop().time() + self.settings.outage_wait_s
        try:
            await self._bounded(self._outages.over.wait(), min(call.deadline, call.outage_until))
        except TimeoutError:
            raise EndpointUnavailable(self._outages.describe()) from None

    def _out_of_time(self, call: Call, where: str) -> ModelError:
        if failures := call.failures + call.rate_limited:
            return EndpointUnavailable(f"{call.last}; the deadline came {where}, after {failures} failures")
        return DeadlineExceeded(f"models.{self.name}: the deadline came {where}")

    async def _bounded(self, work: Awaitable[T], when: float, call: Call | None = None) -> T:
        """Await something until a time; raises TimeoutError then, or EndpointUnavailable if the pool closes.

        Gives a call the means to be ended before that time.
        """
        scope = asyncio.timeout_at(when)
        if call is not None:
            call.scope = scope
        self._scopes.add(scope)
        try:
            async with scope:
                return await work
        except TimeoutError:
            if self._closing:
                raise EndpointUnavailable(f"models.{self.name}: stopped while requests were in flight") from None
            raise
        finally:
            self._scopes.discard(scope)

    def _client(self) -> HttpClient:
        if self._http is None or self._closing:
            raise EndpointUnavailable(f"models.{self.name}: the pool is not open")
        return self._http

    async def _ask_models(self, endpoint: Endpoint) -> int:
        status, _, _ = await self._client().get(endpoint.target.models, endpoint.target.headers)
        return status
