"""An OpenAI-compatible server on loopback that replies exactly what a test scripts, and records what it was asked.

    async with ScriptedServer(["<search>x</search>", Fault.status(500), "<answer>y</answer>"]) as server:
        ...  # server.url is ".../v1"; server.requests lists what arrived, in order

A script is a list (one item per request, in order of arrival; an exhausted list answers 500 and is remembered in
`server.overrun`) or a function of the recorded request. Items: text, `Reply`, or `Fault`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson
from aiohttp import web

from treadle.core.llm.preflight import STOP_TEXTS

COUNTING = " seven, eight, nine, ten, eleven, twelve"
"""What it says when the preflight lets it go on from a text."""


class Codec(Protocol):
    """The methods of a tokenizer that the server needs; `treadle.core.chat.ChatTokenizer` has them."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ByteCodec:
    """One id per UTF-8 byte: enough for tests that do not care about a real vocabulary."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(item for item in ids if item < 256).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Reply:
    """One good answer. `token_ids` default to the codec's ids of `text`; `without_ids` omits them. `refusal` is
    sent over the chat route instead of a text, and `calls` (name, arguments) as native tool calls next to it, after
    `reasoning` outside the text. `prompt_logprobs` are sent, for the prompt's ids after the first, if they are asked
    for.
    """

    text: str
    token_ids: tuple[int, ...] | None = None
    finish_reason: str = "stop"
    stop_reason: str | None = None
    delay_s: float = 0.0
    without_ids: bool = False
    refusal: str | None = None
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    reasoning: str = ""
    prompt_logprobs: tuple[float, ...] | None = None


Stops = Literal["kept", "named", "dropped", "ignored", "mute"]

FaultKind = Literal["status", "reset", "reset_midway", "hang", "malformed", "no_choices"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One bad answer. `reset` drops the connection unanswered, `reset_midway` after half of the body; `hang` never
    answers; `malformed` is a 200 that is not JSON; `no_choices` a 200 whose JSON lacks them."""

    kind: FaultKind
    code: int = 500
    body: str = '{"error": {"message": "scripted fault", "type": "server_error", "code": 500}}'
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def status(cls, code: int, message: str = "scripted fault", retry_after_s: float | None = None) -> Fault:
        error = {"error": {"message": message, "type": "BadRequestError" if code == 400 else "error", "code": code}}
        headers = {} if retry_after_s is None else {"Retry-After": f"{retry_after_s:g}"}
        return cls("status", code, orjson.dumps(error).decode(), headers)

    @classmethod
    def too_long(cls, max_model_len: int = 4096) -> Fault:
        """Return vLLM's 400 for a prompt that does not fit."""
        return cls.status(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your request "
            f"has {max_model_len + 1} input tokens. Please reduce the length of the input messages.",
        )


@dataclass(slots=True)
class RecordedRequest:
    """A request: `prompt` as sent (ids or text), `text` the same as text, `messages` for chat."""

    index: int
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    text: str
    prompt: list[int] | str | None
    messages: list[dict[str, str]] | None
    outcome: str = "pending"


Item = str | Reply | Fault
Script = Iterable[Item] | Callable[[RecordedRequest], "Item | Awaitable[Item]"]


class ScriptedServer:
    """See the module. While `silent` is set, GET /v1/models is not answered. `tells_prompts` returns the ids of prompts
    as vLLM does, with `bos` before those of texts; `chat_only` leaves out the route of completions.

    `stops` is what it does with stop strings: None leaves scripted texts unchanged; `kept` cuts after the first one,
    as vLLM; `named` before it, and reports it, as SGLang (`matched_stop`); `dropped` before it, without reporting it,
    as most; `ignored` leaves texts unchanged. The preflight's requests that find this out are answered accordingly
    and not by the script, and are in `probes`, not in `requests`. `mute` answers them with no text."""

    def __init__(
        self,
        script: Script = (),
        *,
        model: str = "scripted",
        codec: Codec | None = None,
        max_model_len: int | None = 4096,
        ids: bool = True,
        port: int = 0,
        silent: asyncio.Event | None = None,
        tells_prompts: bool = False,
        bos: tuple[int, ...] = (),
        chat_only: bool = False,
        stops: Stops | None = None,
    ) -> None:
        self._stops = stops
        self._tells_prompts = tells_prompts
        self._bos = bos
        self._chat_only = chat_only
        self.model = model
        self.codec: Codec = codec or ByteCodec()
        self.max_model_len = max_model_len
        self.ids = ids
        self.requests: list[RecordedRequest] = []
        self.probes: list[RecordedRequest] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self.connections: set[tuple[str, int]] = set()
        self.overrun = 0
        self.healthy = True
        self._silent = silent
        self._function = script if callable(script) else None
        self._queue: list[Item] = [] if callable(script) else list(script)
        self._port = port
        self._kept_port: socket.socket | None = None
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Base URL, ending in /v1."""
        return f"http://127.0.0.1:{self._port}/v1"

    def push(self, *items: Item) -> None:
        """Append to the script while it runs."""
        self._queue.extend(items)

    async def __aenter__(self) -> ScriptedServer:
        app = web.Application(client_max_size=256 * 2**20)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        if not self._chat_only:
            app.router.add_post("/v1/completions", self._serve)
        app.router.add_post("/v1/chat/completions", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2, access_log=None)
        await self._runner.setup()
        await self.start_listening()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()
        self._release_port()

    async def start_listening(self) -> None:
        """Listen (again, on the same port, after `stop_listening`)."""
        assert self._runner is not None
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        server = site._server
        assert isinstance(server, asyncio.Server)
        self._port = int(server.sockets[0].getsockname()[1])
        self._release_port()

    async def stop_listening(self) -> None:
        """Refuse new connections, as a server that is down; open ones are dropped too."""
        assert self._runner is not None
        for site in list(self._runner.sites):
            await site.stop()
        # Bound, so that no other process gets the port and answers on it.
        self._kept_port = socket.socket()
        self._kept_port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept_port.bind(("127.0.0.1", self._port))
        if self._runner.server is not None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()

    def _release_port(self) -> None:
        if self._kept_port is not None:
            self._kept_port.close()
            self._kept_port = None

    async def _models(self, request: web.Request) -> web.Response:
        while self._silent is not None and self._silent.is_set():
            await asyncio.sleep(0.005)
        card = {"id": self.model, "object": "model", "owned_by": "tests", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        recorded = self._record(request, orjson.loads(await request.read()))
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if peer:
            self.connections.add((str(peer[0]), int(peer[1])))
        if recorded.prompt in STOP_TEXTS or recorded.text in STOP_TEXTS:
            self.probes.append(self.requests.pop())
            return await self._answer(recorded, Reply("" if self._stops == "mute" else COUNTING, finish_reason="stop"))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            item = await self._next(recorded)
            recorded.outcome = item.kind if isinstance(item, Fault) else "ok"
            if isinstance(item, Fault):
                return await self._fail(request, item)
            return await self._answer(recorded, item if isinstance(item, Reply) else Reply(item))
        except asyncio.CancelledError:
            recorded.outcome = "cancelled"
            raise
        finally:
            self.in_flight -= 1

    def _record(self, request: web.Request, body: dict[str, Any]) -> RecordedRequest:
        messages = body.get("messages")
        prompt = body.get("prompt")
        if messages is not None:
            text = "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in messages)
        else:
            text = prompt if isinstance(prompt, str) else self.codec.decode(prompt or [])
        recorded = RecordedRequest(
            len(self.requests), request.path, body, dict(request.headers), text, prompt, messages
        )
        self.requests.append(recorded)
        return recorded

    async def _next(self, recorded: RecordedRequest) -> Item:
        if self._function is not None:
            item = self._function(recorded)
            return await item if inspect.isawaitable(item) else item
        if not self._queue:
            self.overrun += 1
            return Fault.status(500, f"the script has no item for request {recorded.index}")
        return self._queue.pop(0)

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.kind == "hang":
            await self._closing.wait()
            raise ConnectionResetError("the test is over")
        if fault.kind in ("reset", "reset_midway"):
            return await self._reset(request, midway=fault.kind == "reset_midway")
        if fault.kind == "malformed":
            return web.Response(body=b'{"choices": [{"text": "cut off', content_type="application/json")
        if fault.kind == "no_choices":
            return web.json_response({"id": "x", "object": "text_completion"})
        return web.Response(status=fault.code, text=fault.body, content_type="application/json", headers=fault.headers)

    async def _reset(self, request: web.Request, *, midway: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        if midway:
            await response.prepare(request)
            await response.write(b'{"id": "x", "choices": [')
        if request.transport is not None:
            with contextlib.suppress(OSError):  # linger 0: the peer sees RST, not an orderly close
                raw = request.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
        return response

    async def _answer(self, recorded: RecordedRequest, reply: Reply) -> web.Response:
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        text, stop_reason = reply.text, reply.stop_reason
        style = self._stops or ("kept" if text == COUNTING else None)
        if style in ("kept", "named", "dropped"):
            text, stop_reason = self._cut(text, recorded.body.get("stop") or [])
        if style in ("named", "dropped") and stop_reason is not None:
            text = text.removesuffix(stop_reason)
        matched_stop = None
        if style in ("named", "dropped"):
            stop_reason, matched_stop = None, stop_reason if style == "named" else None
        chat = recorded.messages is not None
        ids = list(reply.token_ids) if reply.token_ids is not None else self.codec.encode(reply.refusal or text)
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": reply.finish_reason,
            "stop_reason": stop_reason,
            "logprobs": None,
            **({"matched_stop": matched_stop} if matched_stop is not None else {}),
            **({"message": self._message(text, reply, recorded.index)} if chat else {"text": text}),
        }
        if self.ids and recorded.body.get("return_token_ids") and not reply.without_ids:
            choice["token_ids"] = ids
            if self._tells_prompts:
                given = recorded.prompt
                text_ids = [*self._bos, *self.codec.encode(given)] if isinstance(given, str) else given
                choice["prompt_token_ids"] = text_ids
        if "prompt_logprobs" in recorded.body and reply.prompt_logprobs is not None:
            assert isinstance(recorded.prompt, list)
            pairs = zip(recorded.prompt[1:], reply.prompt_logprobs, strict=True)
            choice["prompt_logprobs"] = [None, *({str(token): {"logprob": value}} for token, value in pairs)]
        num_prompt = (
            len(recorded.prompt) if isinstance(recorded.prompt, list) else len(self.codec.encode(recorded.text))
        )
        payload = {
            "id": f"scripted-{recorded.index}",
            "object": "chat.completion" if chat else "text_completion",
            "created": 0,
            "model": self.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": num_prompt,
                "completion_tokens": len(ids),
                "total_tokens": num_prompt + len(ids),
            },
        }
        return web.Response(body=orjson.dumps(payload), content_type="application/json")

    @staticmethod
    def _message(text: str, reply: Reply, index: int) -> dict[str, Any]:
        refusal = reply.refusal
        message: dict[str, Any] = {"role": "assistant", "content": text if refusal is None else None}
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": f"call-{index}-{place}",
                    "type": "function",
                    "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
                }
                for place, (name, arguments) in enumerate(reply.calls)
            ]
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        return message | {"refusal": refusal}

    @staticmethod
    def _cut(text: str, stops: str | list[str]) -> tuple[str, str | None]:
        names = [stops] if isinstance(stops, str) else stops
        found = [(text.find(stop), stop) for stop in names if stop in text]
        if not found:
            return text, None
        start, stop = min(found)
        return text[: start + len(stop)], stop


@contextlib.contextmanager
def served(script: Script, **options: Any) -> Iterator[ScriptedServer]:
    """Yield a scripted server that answers from a thread of its own, for commands of the product."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    server = ScriptedServer(script, **options)
    wait(server.__aenter__())
    try:
        yield server
    finally:
        wait(server.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
