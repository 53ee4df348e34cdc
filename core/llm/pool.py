"""Send completion requests to the endpoints of one model, with placement, retries and deadlines.

Requests of one session stay on one server (its prefix cache), failures are retried by class, and every wait is bounded.
The rules are in `docs/behaviour/llm.md`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError, ContextTooLong, DeadlineExceeded, EndpointUnavailable, ModelError
from treadle.core.llm.call import ATTEMPTS_PER_ENDPOINT, PoolCall, chat_call, completion_call
from treadle.core.llm.checks import checked_refusal
from treadle.core.llm.client import HttpClient, request_headers
from treadle.core.llm.config import EndpointSettings, ModelSettings, Sampling
from treadle.core.llm.endpoint import Endpoint, Health, Homes
from treadle.core.llm.failures import FINAL_KINDS, Failure, failure_of
from treadle.core.llm.heartbeat import Heartbeat
from treadle.core.llm.hedge import Hedges
from treadle.core.llm.outage import Outages
from treadle.core.llm.preflight import inspect_endpoints
from treadle.core.llm.types import Completion, CompletionRequest, EndpointState, PoolStats, ServerFacts
from treadle.core.llm.wire import Answer
from treadle.core.work_clock import TimeLimit

T = TypeVar("T")
_log = logging.getLogger(__name__)
Sleep = Callable[[float], Awaitable[object]]
_UNRESPONSIVE = "it does not respond, not even to GET /models"


class ModelPool:
    """Client for all endpoints of one model, used as an async context manager.

    Thousands of tasks of one event loop may call `complete` and `chat` at once.

    Attributes:
        name: The model's name in the configuration, for messages.
        stats: Running counts.
        facts: Result of `check`; None before it.
    """

    def __init__(self, name: str, settings: ModelSettings, *, seed: int = 0, sleep: Sleep = asyncio.sleep) -> None:
        """Create a pool; `seed` affects only the jitter of pauses, and `sleep` is replaced in tests."""
        self.name = name
        self.settings = settings
        self.stats = PoolStats()
        self.facts: ServerFacts | None = None
        self._vocabulary: ChatTokenizer | None = None
        self._random = random.Random(seed)
        self._sleep = sleep
        self._endpoints: list[Endpoint] = []
        self._homes = Homes()
        self._http: HttpClient | None = None
        self._limits: set[TimeLimit] = set()
        self._outages = Outages(name, settings, self._endpoints, self._ask_models, self._random)
        self._hedges = Hedges(settings.hedge_floor_s, settings.retry_limit + 1)
        self._watch: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        if not self.settings.endpoints:
            raise ConfigError(f"models.{self.name} has no endpoints; give their URLs, or a server to start")
        for item in self.settings.endpoints:
            self._endpoints.append(self._new_endpoint(item))
        self._http = HttpClient(self.settings.connect_timeout_s, self.settings.max_response_bytes, unpacks=True)
        watch = self._hedges.watch(self._note_late, self._hedge)
        self._watch = asyncio.get_running_loop().create_task(watch)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel all requests in flight or waiting (they raise EndpointUnavailable), then close connections."""
        self._closing = True
        await self._outages.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        for limit in self._limits:
            limit.end_now()
        await asyncio.gather(*(endpoint.heartbeat.close() for endpoint in self._endpoints))
        if self._http is not None:
            await asyncio.gather(*(endpoint.wait_idle() for endpoint in self._endpoints))
            await self._http.close()

    async def check(self, vocabulary: ChatTokenizer | None = None, *, calls_tools: bool = False) -> ServerFacts:
        """Check that every endpoint answers, serves the model, and agrees with the configuration.

        Sends each endpoint GET /models, a completion of one token, and up to six short ones that find out how it
        treats stop strings (not if `api` is `chat`). If token ids are used and the server returns those of its prompts,
        one more request compares them with `vocabulary`. If `calls_tools`, a chat service is asked with a tool, too.

        Raises:
            ConfigError: An endpoint does not fit the configuration; one line names it.
            EndpointUnavailable: An endpoint cannot be reached or does not work; one line names it.
        """
        self._vocabulary = vocabulary
        self.facts = await inspect_endpoints(
            self._client(),
            self.name,
            self.settings,
            self._endpoints,
            self._sleep,
            vocabulary,
            calls_tools=calls_tools,
        )
        return self.facts

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Complete a prompt.

        Args:
            request: Prompt, sampling and stop strings.
            session: Requests of the same session stay on one endpoint; if empty, the least loaded one is used.
            deadline: Time at which to give up, on the caller's work clock (`treadle.core.work_clock`). Waiting for a
                server or a slot, failed attempts and silences do not count.

        Raises:
            ContextTooLong: The prompt does not fit; it is sent once.
            DeadlineExceeded: The deadline passed while a healthy server was working.
            EndpointUnavailable: Servers kept failing, or were silent or down, until retries or waiting time ran out;
                or the deadline passed after a hedge failed; or the pool was closed. The work is pending.
            ModelError: The server refuses the request or gives an unusable answer.
        """
        want_ids = self.settings.token_ids != "off" and isinstance(request.prompt, list)
        call = completion_call(self.settings, self.facts, self._vocabulary, request, want_ids, session, deadline)
        del request  # The body holds everything; free the prompt while the call waits.
        completion = await self._call(call)
        is_promised = self.settings.token_ids == "required" or (self.facts is not None and self.facts.token_ids)
        if want_ids and completion.token_ids is None and is_promised:
            raise ModelError(
                f"models.{self.name}: {completion.endpoint} returned no token ids; use a server that can (vLLM: "
                'return_token_ids), or set token_ids = "off"'
            )
        return completion

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Completion:
        """Complete messages like `complete`, over the chat route: the server renders them; there are no token ids.

        `tools` are tools as OpenAI's API takes them.
        """
        call = chat_call(self.settings, self.facts, messages, sampling, seed, session, deadline, stop=stop, tools=tools)
        return await self._call(call)

    def _learn(self, refused: str) -> None:
        """Leave a refused key out of later requests."""
        if self.facts is not None and refused not in self.facts.refused_keys:
            self.facts = replace(self.facts, refused_keys=(*self.facts.refused_keys, refused))
            _log.info("models.%s refuses %s: requests are sent without", self.name, refused)

    def states(self) -> dict[str, str]:
        """Return the state of each URL: `healthy`, `trial` (just back) or `down`."""
        return {endpoint.url: endpoint.health.value for endpoint in self._endpoints}

    def endpoint_states(self) -> list[EndpointState]:
        """Return the state of each endpoint, in the order of the settings."""
        return [endpoint.state() for endpoint in self._endpoints]

    async def _call(self, call: PoolCall) -> Completion:
        started = asyncio.get_running_loop().time()
        while True:
            endpoint = self._place(call)
            if endpoint is None:
                await self._wait_for_endpoint(call)
                continue
            try:
                answer = await self._attempt(endpoint, call)
            except Failure as failure:
                # A hedge may have ended the attempt: then `call.endpoint` is the hedge's.
                await self._pause(self._handle_failure(failure, call.endpoint or endpoint, call), call)
                continue
            if answer is not None:
                return self._completion(answer, call.endpoint or endpoint, started, call)

    def _completion(self, answer: Answer, endpoint: Endpoint, started: float, call: PoolCall) -> Completion:
        self.stats.completions += 1
        if answer.notes:
            self.stats.odd.update(answer.notes)
        return call.completion(answer, endpoint, asyncio.get_running_loop().time() - started)

    def _place(self, call: PoolCall) -> Endpoint | None:
        """Return the endpoint for the next attempt, None if none takes requests.

        It is the first of the session's homes (`Homes`) that takes requests, did not ask this call to wait and did not
        fail it twice. Without such a home, the endpoint with the fewest requests becomes one.
        """
        usable = [endpoint for endpoint in self._endpoints if endpoint.usable]
        if len(usable) < 2:
            return self._homes.of(call.session, usable) if usable else None
        tried, waits = call.per_endpoint, call.waits
        candidates = [item for item in usable if tried.get(item.url, 0) < ATTEMPTS_PER_ENDPOINT]
        if not candidates:
            tried.clear()
            candidates = usable
        now = asyncio.get_running_loop().time()
        ready = [item for item in candidates if item.paused_until <= now and waits.get(item.url, now) <= now]
        if not ready:
            return min(candidates, key=lambda item: max(item.paused_until, waits.get(item.url, now)))
        return self._homes.of(call.session, ready)

    async def _attempt(self, endpoint: Endpoint, call: PoolCall) -> Answer | None:
        """Send one request; return None if the endpoint stopped taking requests while this one waited for a slot."""
        if call.waits and (own := call.waits.pop(endpoint.url, 0.0)):
            await self._pause(own - asyncio.get_running_loop().time(), call)
        if not endpoint.try_acquire():
            # Waiting for a slot must not use up the work's time. It needs no timeout: requests end, so slots get free.
            with call.clock.hold():
                if not await self._bounded(endpoint.acquire(first=call.is_hedge), call.clock.limit(None)):
                    return None
        try:
            now = asyncio.get_running_loop().time()
            if endpoint.paused_until > now:
                await self._pause(endpoint.paused_until - now, call)
            return await self._send(endpoint, call)
        except Failure as failure:
            endpoint.counts.errors[failure.kind] += failure.kind != "silence"  # A silence is counted when it begins.
            raise
        finally:
            endpoint.release()

    async def _send(self, endpoint: Endpoint, call: PoolCall) -> Answer:
        sent_at = asyncio.get_running_loop().time()
        call.failed_hedges = 0
        if call.clock.time() >= call.deadline:
            raise self._deadline_error(call, "before the request was sent")
        call.limit = call.clock.limit(call.deadline, lambda: self._confirm_deadline(endpoint, call))
        watch = endpoint.heartbeat.watch(call.limit)
        stats = self.stats
        stats.in_flight += 1
        stats.peak_in_flight = max(stats.peak_in_flight, stats.in_flight)
        self._hedges.sent(call, endpoint, sent_at)
        try:
            status, headers, data = await self._bounded(self._exchange(endpoint, call), call.limit)
        except TimeoutError:
            # The limit also ends if a hedge delivered its result, or if the heartbeat gave the server up.
            if call.hedge_result is not None:
                return call.take_hedge_result()
            # If another endpoint takes requests, the silence is a failure like others: the call is sent there.
            elsewhere = any(other.usable for other in self._endpoints if other is not endpoint)
            if endpoint.heartbeat.ended_by_silence(watch) and not elsewhere:
                endpoint.last_error = f"did not respond for {self.settings.outage_wait_s:g} s"
                raise EndpointUnavailable(self._outages.describe()) from None
            self._raise_if_silent(endpoint, call)
            raise self._deadline_error(call, f"waiting for {endpoint.url}") from None
        except Failure:
            # A hedge may have delivered its result just before, in the same round of the event loop.
            if call.hedge_result is None:
                raise
            return call.take_hedge_result()
        finally:
            stats.in_flight -= 1
            self._hedges.ended(call)
            endpoint.heartbeat.unwatch(watch)
            call.limit = None  # The limit refers to the call: a cycle would keep both until the next collection.
        endpoint.heartbeat.heard()
        if call.hedge_result is not None:
            return call.take_hedge_result()
        if status != 200:
            if (refused := call.adapt(status, data)) is not None:
                self._learn(refused)
                return await self._send(endpoint, call)
            raise self._refusal(endpoint, failure_of(status, headers, data), status, call)
        answer = call.read(data)
        endpoint.counts.answered += 1
        endpoint.counts.sampled_tokens += answer.completion_tokens
        self._outages.note_success(endpoint, sent_at)
        self._hedges.answered(endpoint.last_alive_at - sent_at)
        return answer

    async def _exchange(self, endpoint: Endpoint, call: PoolCall) -> tuple[int, Mapping[str, str], bytes]:
        target = endpoint.target
        url = target.chat if call.route == "chat" else target.completions
        try:
            async with asyncio.timeout(self.settings.request_timeout_s):
                return await self._client().post(url, call.body, target.headers, secrets=target.secrets)
        except TimeoutError:
            raise Failure("timeout", f"no answer within {self.settings.request_timeout_s:g} s") from None

    async def _confirm_deadline(self, endpoint: Endpoint, call: PoolCall) -> bool:
        """Return whether to end a request at its deadline.

        True if the server responds and the time is really up, or if it is silent and another endpoint can take the
        request.
        """
        if await endpoint.heartbeat.is_alive():
            # Its clock may have been set back meanwhile; a rounding error must not make it wait again.
            return call.clock.time() >= call.deadline - 0.001
        self._note_silence(endpoint)
        # A frozen server still holds the request, and its clock is held: wait, if no other endpoint can take it.
        return any(other.usable for other in self._endpoints)

    def _note_silence(self, endpoint: Endpoint) -> None:
        if not endpoint.silent:
            endpoint.silent = endpoint.usable
            endpoint.counts.errors["silence"] += endpoint.silent
            self._outages.note_fault(endpoint, _UNRESPONSIVE, at_once=True)

    def _raise_if_silent(self, endpoint: Endpoint, call: PoolCall) -> None:
        """Raise Failure if the server is silent or down, or was silent since the request was sent.

        Called when the time of a request is up. The server may have lost the request in its silence.
        """
        if endpoint.heartbeat.silent_since is not None:
            raise Failure("silence", _UNRESPONSIVE)
        if endpoint.heartbeat.recovered_at > call.sent_at:
            raise Failure("timeout", "no answer, and the server was unresponsive")
        if endpoint.health is Health.DOWN:
            raise Failure("timeout", "no answer, and the server is down")

    def _refusal(self, endpoint: Endpoint, failure: Failure, status: int, call: PoolCall) -> Failure:
        if call.asked is not None:
            window = self.facts.max_model_len if self.facts is not None else None
            failure = checked_refusal(failure, call.asked, window)
        if status in (429, 503):
            endpoint.refused(endpoint.last_alive_at + max(self._backoff(1), failure.retry_after_s or 0.0))
        return failure

    def _note_late(self, call: PoolCall, endpoint: Endpoint) -> None:
        """Take the endpoint of a late call down if it is silent; probe it if it has not responded since the call."""
        if endpoint.heartbeat.silent_since is not None:
            self._note_silence(endpoint)
        elif endpoint.last_alive_at < call.sent_at:  # Else it is alive: some answers just take longer.
            endpoint.heartbeat.probe_now()

    async def _hedge(self, late: PoolCall) -> None:
        """Send a late call a second time in parallel, elsewhere if possible; deliver its answer or final failure."""
        call = late.hedge_copy()
        endpoint = self._place(call)
        if endpoint is None or endpoint.heartbeat.silent_since is not None:
            return self._hedges.postpone(late)
        if endpoint is late.endpoint and not (await endpoint.heartbeat.is_alive() and self._hedges.is_late(late)):
            # A frozen server would hold the second request as well, and needs time for the first one afterwards.
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
                    late.failed_hedges += 1
                    late.last = f"models.{self.name}: {endpoint.url}: {failure}"
                # A failed hedge may be followed by another one after a pause.
                late.hedge_at = min(late.hedge_at, again_at)
                return
            outcome = failure
        if outcome is not None:
            late.deliver(endpoint, outcome, call.sent_at)

    def _handle_failure(self, failure: Failure, endpoint: Endpoint, call: PoolCall) -> float:
        """Record a failed attempt; return the seconds until the next one, or raise if the call is over."""
        message = f"models.{self.name}: {endpoint.url}: {failure}"
        if failure.kind in FINAL_KINDS:
            self._outages.note_success(endpoint, call.sent_at)
            raise (ContextTooLong if failure.kind == "context" else ModelError)(message) from failure
        call.clock.exclude(call.sent_at)
        call.last = message
        call.kinds.add(failure.kind)
        if failure.kind == "malformed":
            call.odd += (failure.oddity,)
            self.stats.odd[failure.oddity] += 1
        if failure.kind == "rate_limit":
            endpoint.last_error = str(failure)
            call.rate_limited += 1
            if call.rate_limited > self.settings.rate_limit_retries:
                raise EndpointUnavailable(f"{message}; gave up after {call.retries} attempts") from failure
            self.stats.retries[failure.kind] += 1
            pause = max(self._backoff(call.rate_limited), failure.retry_after_s or 0.0)
            call.waits[endpoint.url] = asyncio.get_running_loop().time() + pause
            return 0.0
        return self._handle_fault(failure, endpoint, call)

    def _handle_fault(self, failure: Failure, endpoint: Endpoint, call: PoolCall) -> float:
        """Do the same as `_handle_failure` for a failure that counts against the endpoint's health."""
        self._outages.note_fault(endpoint, str(failure), at_once=failure.kind in ("connect", "silence"))
        call.failures += 1
        tried = call.per_endpoint[endpoint.url] = call.per_endpoint.get(endpoint.url, 0) + 1
        if call.failures > self.settings.retry_limit + len(self._endpoints) - 1:
            kind = ModelError if call.kinds == {"malformed"} else EndpointUnavailable
            raise kind(f"{call.last}; gave up after {call.retries} attempts") from failure
        self.stats.retries[failure.kind] += 1
        # A refused connection is retried elsewhere at once, or waits until the endpoint is back. A reset may be an idle
        # connection that the server closed, which is no fault. With several endpoints, a single failure of a server
        # that otherwise answers needs no pause either: after a second failure there, the call goes elsewhere.
        single = failure.retry_after_s is None and endpoint.failures_in_a_row <= 1 and len(self._endpoints) > 1
        if failure.kind == "connect" or (tried == 1 and (failure.kind == "reset" or single)):
            return 0.0
        return max(self._backoff(call.failures), failure.retry_after_s or 0.0)

    def _backoff(self, count: int) -> float:
        pause = min(self.settings.backoff_max_s, self.settings.backoff_base_s * 2.0 ** min(count - 1, 30))
        return pause * self._random.uniform(0.5, 1.0)

    async def _pause(self, seconds: float, call: PoolCall) -> None:
        if seconds <= 0:
            return
        longest_s = max(self.settings.outage_wait_s, self.settings.backoff_max_s)
        if seconds > longest_s:  # Only Retry-After can ask for that.
            cause = call.last or self._outages.describe()
            raise EndpointUnavailable(f"{cause}; it asked for a pause of {seconds:.0f} s, longer than {longest_s:g} s")
        with call.clock.hold():
            await self._bounded(self._sleep(seconds), call.clock.limit(None))

    async def _wait_for_endpoint(self, call: PoolCall) -> None:
        """Wait until an endpoint is back; raise EndpointUnavailable after `outage_wait_s`."""
        if call.outage_until is None:
            call.outage_until = asyncio.get_running_loop().time() + self.settings.outage_wait_s
        try:
            with call.clock.hold():
                async with asyncio.timeout_at(call.outage_until):
                    await self._bounded(self._outages.over.wait(), call.clock.limit(None))
        except TimeoutError:
            raise EndpointUnavailable(self._outages.describe()) from None

    def _deadline_error(self, call: PoolCall, where: str) -> ModelError:
        # The time of failed attempts was given back, so only failures during this one leave the work pending.
        if call.failed_hedges:
            return EndpointUnavailable(f"{call.last}; the deadline passed {where}, after {call.failed_hedges} failures")
        return DeadlineExceeded(f"models.{self.name}: the deadline passed {where}")

    async def _bounded(self, work: Awaitable[T], limit: TimeLimit) -> T:
        """Await `work` within a limit; raise TimeoutError if it passes, EndpointUnavailable if the pool closes."""
        self._limits.add(limit)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if self._closing:
                raise EndpointUnavailable(f"models.{self.name}: stopped while requests were in flight") from None
            raise
        finally:
            self._limits.discard(limit)

    def _client(self) -> HttpClient:
        if self._http is None or self._closing:
            raise EndpointUnavailable(f"models.{self.name}: the pool is not open")
        return self._http

    def _new_endpoint(self, settings: EndpointSettings) -> Endpoint:
        async def ask() -> None:
            try:
                await self._ask_models(endpoint)
            except Failure as failure:
                if failure.kind != "malformed":  # That is an answer, too.
                    raise

        heartbeat = Heartbeat(
            ask,
            min_pause_s=self.settings.probe_base_s,
            max_pause_s=self.settings.probe_max_s,
            max_silence_s=self.settings.outage_wait_s,
        )
        headers = request_headers(self.name, self.settings)
        endpoint = Endpoint(settings, self.settings.max_in_flight, heartbeat, headers)
        return endpoint

    async def _ask_models(self, endpoint: Endpoint) -> int:
        target = endpoint.target
        status, _, _ = await self._client().get(target.models, target.headers, secrets=target.secrets)
        return status
