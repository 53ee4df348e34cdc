"""Check before the first request of a run that endpoints answer, serve the model, and agree with the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError, EndpointUnavailable
from treadle.core.llm.client import HttpClient
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.endpoint import Endpoint
from treadle.core.llm.failures import Failure, excerpt, failure_of
from treadle.core.llm.hosted import FIXED_VALUES, WHOLE_TOP_P, needs_reasoning, refused_keys
from treadle.core.llm.stops import DROPPED, IGNORED, UNKNOWN, stop_within, style_of
from treadle.core.llm.types import CompletionRequest, ServerFacts
from treadle.core.llm.wire import Answer, chat_body, completion_body, parse_chat, parse_probe
from treadle.core.untrusted.json_text import load_json

PROBE_IDS = [0]
"""Prompt of the first completion: a token id that every vocabulary has."""
PROBE_TEXT = "Hi"
TOKENIZER_TEXT = (
    "Na\u00efve towers sum to 31,415 + 926:\n\tfor item in found: print(item)  # \u6771\u4eac \u041c\u0438\u0440!"
)
"""Words, numbers, code, whitespace and three scripts: different vocabularies tokenize it differently."""
STOP_TEXTS = (
    "One, two, three, four, five, six,",
    "Monday, Tuesday, Wednesday, Thursday,",
    "The quick brown fox jumps over the",
)
"""Prompts that models continue with words, so that there is something to stop at."""
STOP_TOKENS = 12
_GREEDY = Sampling(temperature=0.0, top_p=1.0, max_tokens=1)
_CHAT_PROBE = Sampling(temperature=0.5, top_p=0.9, max_tokens=1)
"""Values that differ from the defaults of all services: a service that accepts only its defaults refuses them."""
_CHAT_STOP = ("</end>",)
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
_PROBE_CALL = "call00001"
_CHAT_HINT = '; if it is chat-only, set api = "chat" (eval: --chat)'
_NO_ROUTE = (404, 405, 501)
_STEP_TIME_S = 60.0
"""Maximum seconds for one step of the preflight; the server may be busy with other work."""
_SILENCES = 2
"""Maximum number of retries of a step that timed out."""


async def inspect_endpoints(
    http: HttpClient,
    name: str,
    settings: ModelSettings,
    endpoints: Sequence[Endpoint],
    sleep: Callable[[float], Awaitable[object]],
    vocabulary: ChatTokenizer | None,
    *,
    calls_tools: bool = False,
) -> ServerFacts:
    """Inspect all endpoints of a model concurrently.

    If an endpoint returns the token ids of its prompts, they are compared with those of `vocabulary`. With
    `calls_tools`, chat requests will carry tools.

    Raises:
        ConfigError: The first endpoint that fails does not fit the configuration.
        EndpointUnavailable: The first endpoint that fails cannot be reached or does not work.
    """
    found = [
        _Inspection(http, settings, endpoint, f"models.{name}: endpoint {endpoint.url}", sleep, vocabulary, calls_tools)
        for endpoint in endpoints
    ]
    for error in await asyncio.gather(*(item.run() for item in found), return_exceptions=True):
        if error is not None:
            raise error
    windows = [item.window for item in found if item.window is not None]
    token_ids = all(item.token_ids for item in found) and settings.token_ids != "off"
    if settings.token_ids == "required" and not token_ids:
        bad = [item.endpoint.url for item in found if not item.token_ids]
        raise ConfigError(f'models.{name}: token_ids = "required", but {", ".join(bad)} does not return token ids')
    return ServerFacts(
        model=settings.model,
        max_model_len=settings.max_model_len or min(windows, default=None),
        token_ids=token_ids,
        endpoints=tuple(item.endpoint.url for item in found),
        refused_keys=tuple(sorted({key for item in found for key in item.refused_keys})),
        stops={item.endpoint.url: item.stops for item in found},
        splits_reasoning=any(item.splits_reasoning for item in found),
        needs_reasoning=any(item.needs_reasoning for item in found),
    )


@dataclass(slots=True)
class _Inspection:
    """Preflight of one endpoint. Temporary failures are retried; a refused connection is not."""

    _http: HttpClient
    _settings: ModelSettings
    endpoint: Endpoint
    _where: str
    _sleep: Callable[[float], Awaitable[object]]
    _vocabulary: ChatTokenizer | None
    _calls_tools: bool
    _listed: bool = False
    _returns_prompt_ids: bool = False
    window: int | None = None
    token_ids: bool = False
    refused_keys: list[str] = field(default_factory=list)
    stops: str = DROPPED
    """How the endpoint treats stop strings; see `treadle.core.llm.stops`."""
    splits_reasoning: bool = False
    needs_reasoning: bool = False

    async def run(self) -> None:
        chat = self._settings.api == "chat"
        try:
            self.window = await self._with_retries(self._check_model)
            self.token_ids = await self._with_retries(self._check_chat if chat else self._check_completion)
            if self.token_ids and self._vocabulary is not None and self._returns_prompt_ids:
                await self._with_retries(self._check_vocabulary)
            if not chat:
                self.stops = await self._with_retries(self._check_stops)
        except Failure as failure:
            raise self._explain(failure) from failure
        window, wanted = self.window, self._settings.max_model_len
        if window is not None and wanted is not None and wanted > window:
            raise ConfigError(
                f"{self._where} serves a window of {window} tokens, fewer than max_model_len = {wanted}; "
                "lower max_model_len or start the server with a larger window"
            )
        if chat and "stop" in self.refused_keys:
            self.stops = IGNORED

    async def _with_retries(self, step: Callable[[], Awaitable[Any]]) -> Any:
        for attempt in range(self._settings.retry_limit + 1):
            try:
                return await self._in_time(step)
            except Failure as failure:
                passing = failure.kind in ("server", "reset", "malformed", "rate_limit", "timeout")
                last = (
                    min(self._settings.retry_limit, _SILENCES)
                    if failure.kind == "timeout"
                    else self._settings.retry_limit
                )
                if not passing or attempt >= last:
                    raise
                pause = min(self._settings.backoff_max_s, self._settings.backoff_base_s * 2**attempt)
                await self._sleep(max(pause, failure.retry_after_s or 0.0))
        raise AssertionError("the last attempt returns or raises")

    async def _in_time(self, step: Callable[[], Awaitable[Any]]) -> Any:
        limit_s = min(_STEP_TIME_S, self._settings.request_timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                return await step()
        except TimeoutError:
            raise Failure("timeout", f"no answer within {limit_s:g} s") from None

    async def _check_model(self) -> int | None:
        """Return the served window in tokens, None if unknown; raise ConfigError if the model is not listed."""
        began = asyncio.get_running_loop().time()
        target = self.endpoint.target
        status, headers, data = await self._http.get(target.models, target.headers, secrets=target.secrets)
        self.endpoint.heartbeat.took(asyncio.get_running_loop().time() - began)
        if status in _NO_ROUTE:
            return None
        if status != 200:
            raise failure_of(status, headers, data)
        try:
            cards = {str(card["id"]): card for card in load_json(data)["data"]}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise Failure("malformed", f"/models does not list models: {excerpt(data)}") from None
        card = cards.get(self._settings.model)
        if card is None:
            served = excerpt(", ".join(sorted(cards)).encode("utf-8", "replace"))
            raise ConfigError(f"{self._where} does not serve model {self._settings.model!r}; it serves: {served}")
        self._listed = True
        meta = card.get("meta")
        # llama.cpp reports the window of a slot as `n_ctx`.
        window = card.get("max_model_len", meta.get("n_ctx") if isinstance(meta, dict) else None)
        return window if type(window) is int and window > 0 else None

    async def _check_completion(self) -> bool:
        """Return whether the server takes and returns token ids; raise Failure if it completes nothing."""
        if self._settings.token_ids != "off":
            try:
                answer = await self._complete(PROBE_IDS, want_ids=True)
                self._returns_prompt_ids = answer.prompt_ids is not None
                return answer.token_ids is not None
            except Failure as failure:
                if failure.kind != "refused":
                    raise
        await self._complete(PROBE_TEXT)
        return False

    async def _check_vocabulary(self) -> None:
        """Raise ConfigError if the server tokenizes a text differently; one more id (BOS) at the start is fine."""
        assert self._vocabulary is not None
        theirs = (await self._complete(TOKENIZER_TEXT, want_ids=True)).prompt_ids
        ours = tuple(self._vocabulary.encode(TOKENIZER_TEXT))
        if theirs is not None and ours not in (theirs, theirs[1:]):
            raise ConfigError(
                f"{self._where} tokenizes a text differently from the tokenizer in {self._vocabulary.folder}"
                "; set `tokenizer` to the folder with the tokenizer of the served model"
            )

    async def _check_stops(self) -> str:
        """Return how the server treats stop strings: complete a text, then stop at a letter of the result."""
        for text in STOP_TEXTS:
            free = (await self._complete(text, max_tokens=STOP_TOKENS)).text
            if stop := stop_within(free):
                answer = await self._complete(text, max_tokens=STOP_TOKENS, stop=(stop,))
                if (style := style_of(free, stop, answer)) != UNKNOWN:
                    return style
        return UNKNOWN

    async def _check_chat(self) -> bool:
        """Return False, as the chat route has no token ids; raise Failure if the server does not answer messages.

        Collects the keys that the service refuses: without one of them, the next request may be refused for another.
        """
        status, headers, data = await self._ask_chat()
        while new := [key for key in refused_keys(status, data) if key not in self.refused_keys]:
            self.refused_keys.append(new[0])
            status, headers, data = await self._ask_chat()
        if status in _NO_ROUTE and self._listed:
            raise ConfigError(
                f"{self._where} lists the model, but {self.endpoint.target.chat} answers HTTP {status}; "
                'set api = "completions" if it completes prompts'
            )
        if status != 200:
            failure = failure_of(status, headers, data)
            # One token is too few for some models that think first; their service answers HTTP 400 then.
            if failure.kind != "context":
                raise failure
        else:
            self._read_chat(data)
        if self._calls_tools:
            await self._check_tools()
        return False

    def _read_chat(self, data: bytes) -> None:
        self.splits_reasoning |= bool(parse_chat(data).reasoning)

    async def _check_tools(self) -> None:
        """Raise ConfigError if the service, which answers messages, refuses tools."""
        status, headers, data = await self._ask_chat((_PROBE_TOOL,))
        while new := [key for key in refused_keys(status, data) if key not in self.refused_keys]:
            self.refused_keys.append(new[0])
            status, headers, data = await self._ask_chat((_PROBE_TOOL,))
        if status == 200:
            self._read_chat(data)
            if self.splits_reasoning:
                await self._check_reasoning()
            return
        failure = failure_of(status, headers, data)
        if failure.kind == "refused":
            raise ConfigError(
                f"{self._where} refuses tools: {failure}; if it is vLLM, start it with --enable-auto-tool-choice and "
                '--tool-call-parser, or set environment.dialect = "tags", which suffices for search and python'
            )
        if failure.kind != "context":
            raise failure

    async def _check_reasoning(self) -> None:
        """Find out whether messages with a call must also contain the reasoning that came with it."""
        call = {"id": _PROBE_CALL, "type": "function", "function": {"name": "look_up", "arguments": '{"key": "a"}'}}
        turn: list[dict[str, Any]] = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "b", "tool_call_id": _PROBE_CALL},
        ]
        status, _, data = await self._ask_chat((_PROBE_TOOL,), turn)
        self.needs_reasoning = needs_reasoning(status, data)

    async def _ask_chat(
        self, tools: Sequence[Mapping[str, Any]] = (), turn: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, Mapping[str, str], bytes]:
        refused = self.refused_keys
        sampling = _CHAT_PROBE.model_copy(update={key: FIXED_VALUES[key] for key in refused if key in FIXED_VALUES})
        messages = [{"role": "user", "content": PROBE_TEXT}, *turn]
        stop = () if tools else _CHAT_STOP
        body = chat_body(
            self._settings.model,
            messages,
            sampling,
            0,
            stop,
            tools=tools,
            chat_only=True,
            refused=refused,
            extra=self._settings.extra_body,
        )
        target = self.endpoint.target
        return await self._http.post(target.chat, body, target.headers, secrets=target.secrets)

    async def _complete(
        self, prompt: list[int] | str, *, want_ids: bool = False, max_tokens: int = 1, stop: tuple[str, ...] = ()
    ) -> Answer:
        request = CompletionRequest(prompt, max_tokens=max_tokens, sampling=_GREEDY, stop=stop, seed=0)
        target = self.endpoint.target

        async def post() -> tuple[int, Mapping[str, str], bytes]:
            body = completion_body(
                self._settings.model, request, want_ids, extra=self._settings.extra_body, refused=self.refused_keys
            )
            return await self._http.post(target.completions, body, target.headers, secrets=target.secrets)

        status, headers, data = await post()
        if WHOLE_TOP_P not in self.refused_keys and WHOLE_TOP_P in refused_keys(status, data):
            self.refused_keys.append(WHOLE_TOP_P)
            status, headers, data = await post()
        if status in _NO_ROUTE and self._listed:
            raise ConfigError(
                f"{self._where} lists the model, but {target.completions} answers HTTP {status}: a chat-only "
                'service is asked with api = "chat" (eval: --chat); a policy that is trained on its own rollouts needs '
                "a server that completes prompts, such as vLLM"
            )
        if status != 200:
            raise failure_of(status, headers, data)
        return parse_probe(data)

    def _explain(self, failure: Failure) -> ConfigError | EndpointUnavailable:
        if failure.kind in ("connect", "reset", "timeout"):
            return EndpointUnavailable(
                f"{self._where} cannot be reached: {failure}; start the server or correct the URL"
            )
        if failure.kind in ("server", "rate_limit"):
            return EndpointUnavailable(f"{self._where} does not work: {failure}")
        if failure.kind == "malformed":
            return ConfigError(f"{self._where} does not speak the OpenAI API: {failure}")
        said = str(failure)
        hint = "" if self._settings.api == "chat" or "chat" not in said.lower() else _CHAT_HINT
        if added := [key for key in self._settings.extra_body if key in said]:
            hint = f"; {added[0]} is in extra_body"
        return ConfigError(f"{self._where} refused the preflight request: {failure}{hint}")
