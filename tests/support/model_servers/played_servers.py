"""Servers as users meet them, played by the scripted server: each refuses, answers and counts as the real one does.

Taken from the servers' documentation and source. llama.cpp's answers are those of its own server with SmolLM2
(`make interop` asks it), vLLM's those that tests/e2e sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from aiohttp import web
from support.servers.scripted_server import RecordedRequest, Reply, ScriptedServer, Stops

Refusal = tuple[int, Any]
WINDOW = 32768


def _openai(message: str, param: str | None = None) -> Refusal:
    return 400, {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


@dataclass(frozen=True)
class PlayedServer:
    """How one kind of server differs from others.

    Attributes:
        name: In the table of the docs.
        completes: Whether it has the route of completions.
        takes_ids: Whether prompts may be token ids.
        returns_ids: Whether it returns the ids that were sampled.
        stops: What it does with stop strings.
        refuses: Request's body -> refusal, if any.
        card: Additions to the model's entry in GET /models.
        too_long: Refusal of a prompt beyond the window.
        reasoning: Key of the message for reasoning; empty if there is none.
        needs_reasoning: Whether reasoning has to be sent back next to calls.
        call_id: Ids of calls: by position; None leaves them out.
        arguments: Whether arguments are JSON text or an object.
        call_finish: Finish reason of an answer with calls.
        finish: Finish reason of other answers that the model ended.
        stop_finish: That of answers that a stop string ended, if it is another one.
        usage: Names of the token counts; without names they are missing.
        calls_content: Content next to calls.
    """

    name: str
    completes: bool = True
    takes_ids: bool = True
    returns_ids: bool = False
    stops: Stops = "dropped"
    refuses: Callable[[Mapping[str, Any]], Refusal | None] = lambda body: None
    card: Mapping[str, Any] = field(default_factory=dict)
    too_long: Refusal = _openai("This model's maximum context length is 32768 tokens. However, you requested 40000.")
    reasoning: str = ""
    needs_reasoning: bool = False
    call_id: Callable[[int], Any] = lambda place: f"call_{place}"
    arguments: Literal["text", "object"] = "text"
    call_finish: str = "tool_calls"
    finish: str = "stop"
    stop_finish: str = ""
    usage: tuple[str, str] | None = ("prompt_tokens", "completion_tokens")
    calls_content: str | None = None


def _refuse_ids(status: int, body: Any) -> Callable[[Mapping[str, Any]], Refusal | None]:
    return lambda sent: (status, body) if isinstance(sent.get("prompt"), list) else None


def _tgi(sent: Mapping[str, Any]) -> Refusal | None:
    if isinstance(sent.get("prompt"), list):
        return 422, "Failed to deserialize the JSON body into the target type: prompt: data did not match any variant"
    if not 0.0 < sent.get("top_p", 0.5) < 1.0:
        said = "Input validation error: `top_p` must be > 0.0 and < 1.0"
        return 422, {"error": said, "error_type": "validation"}
    return None


def _o_series(sent: Mapping[str, Any]) -> Refusal | None:
    for key in ("top_k", "min_p", "repetition_penalty", "include_stop_str_in_output"):
        if key in sent:
            return _openai(f"Unrecognized request argument supplied: {key}", key)
    if "max_tokens" in sent:
        said = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return _openai(said, "max_tokens")
    for key in ("temperature", "top_p"):
        if sent.get(key, 1) != 1:
            said = (
                f"Unsupported value: '{key}' does not support {sent[key]} with this model. Only the default (1) value"
            )
            return _openai(f"{said} is supported.", key)
    for key in ("stop", "seed", "parallel_tool_calls"):
        if key in sent:
            return _openai(f"Unsupported parameter: '{key}' is not supported with this model.", key)
    if sent.get("max_completion_tokens") == 1:
        return _openai("Could not finish the message because max_tokens or model output limit was reached.")
    return None


def _mistral(sent: Mapping[str, Any]) -> Refusal | None:
    for key in ("seed", "top_k", "min_p", "repetition_penalty"):
        if key in sent:
            detail = [{"type": "extra_forbidden", "loc": ["body", key], "msg": "Extra inputs are not permitted"}]
            return 422, {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error"}
    for message in sent.get("messages", ()):
        given = message.get("tool_call_id", "a" * 9)
        if not (len(given) == 9 and given.isalnum()):
            said = f"Tool call id was {given} but must be a-z, A-Z, 0-9, with a length of 9."
            return 400, {"object": "error", "message": said, "type": "invalid_request_error", "code": "3280"}
    return None


def _gemma(sent: Mapping[str, Any]) -> Refusal | None:
    if any(message["role"] == "system" for message in sent.get("messages", ())):
        return _openai("System role not supported")
    return None


def _deepseek(sent: Mapping[str, Any]) -> Refusal | None:
    if "logprobs" in sent:
        return _openai("deepseek-reasoner does not support this parameter logprobs", "logprobs")
    return None


SERVERS = (
    PlayedServer("vLLM", returns_ids=True, stops="kept", card={"max_model_len": WINDOW}, reasoning="reasoning"),
    PlayedServer(
        "SGLang",
        returns_ids=True,
        stops="named",
        card={"max_model_len": WINDOW},
        too_long=_openai("The input (40000 tokens) is longer than the model's context length (32768 tokens)."),
        reasoning="reasoning_content",
    ),
    PlayedServer(
        "llama.cpp",
        card={"meta": {"n_ctx": WINDOW, "n_ctx_train": 2 * WINDOW}, "owned_by": "llamacpp"},
        too_long=(
            400,
            {
                "error": {
                    "code": 400,
                    "message": "request (40000 tokens) exceeds the available context size (32768 tokens)",
                    "type": "exceed_context_size_error",
                }
            },
        ),
        reasoning="reasoning_content",
        call_id=lambda place: f"{place}" * 32,
    ),
    PlayedServer(
        "Ollama",
        takes_ids=False,
        refuses=_refuse_ids(
            400, {"error": {"message": "json: cannot unmarshal array into Go struct field .prompt of type string"}}
        ),
        too_long=(400, {"error": {"message": "the input length exceeds the context length"}}),
        reasoning="reasoning",
        arguments="object",
        calls_content="",
    ),
    PlayedServer(
        "TGI",
        takes_ids=False,
        stops="kept",
        refuses=_tgi,
        too_long=(
            422,
            {"error": "Input validation error: `inputs` must have less than 32768 tokens. Given: 40000"},
        ),
        call_id=lambda place: 0,
        finish="eos_token",
        call_finish="stop",
    ),
    PlayedServer("hosted, OpenAI-style", completes=False, stops="dropped"),
    PlayedServer("OpenAI o-series", completes=False, stops="ignored", refuses=_o_series),
    PlayedServer(
        "DeepSeek, thinking",
        completes=False,
        refuses=_deepseek,
        reasoning="reasoning_content",
        needs_reasoning=True,
        calls_content="",
    ),
    PlayedServer("OpenRouter", completes=False, reasoning="reasoning", call_id=lambda place: None),
    PlayedServer("Mistral", completes=False, refuses=_mistral, call_id=lambda place: f"aB3xK9mP{place}"),
    PlayedServer(
        "Gemini, OpenAI-style",
        completes=False,
        too_long=(
            400,
            [
                {
                    "error": {
                        "code": 400,
                        "message": "The input token count exceeds the maximum number of tokens allowed (32768).",
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ],
        ),
        call_id=lambda place: "",
        finish="STOP",
        call_finish="STOP",
    ),
    PlayedServer(
        "Claude behind a gateway",
        completes=False,
        too_long=(400, {"error": {"message": "prompt is too long: 40000 tokens > 32768 maximum"}}),
        call_id=lambda place: f"toolu_{place:024d}",
        finish="end_turn",
        stop_finish="stop_sequence",
        call_finish="tool_use",
        reasoning="reasoning_content",
    ),
    PlayedServer("without the role system", completes=False, refuses=_gemma),
    PlayedServer("Responses-style counts", completes=False, usage=("input_tokens", "output_tokens")),
    PlayedServer("without token counts", completes=False, usage=None),
)


class Player(ScriptedServer):
    """Scripted server that plays one of `SERVERS`; calls are given as `Reply.calls`."""

    def __init__(self, played: PlayedServer, script: Callable[[RecordedRequest], Reply], codec: Any = None) -> None:
        super().__init__(
            script,
            codec=codec,
            ids=played.returns_ids,
            stops=played.stops,
            chat_only=not played.completes,
            tells_prompts=played.returns_ids,
        )
        self._played = played

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "created": 0, "owned_by": "tests", **self._played.card}
        return web.json_response({"object": "list", "data": [card]})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        played, sent = self._played, orjson.loads(await request.read())
        refusal = played.refuses(sent)
        if refusal is None and sent.get("model") != self.model:
            refusal = 404, {"error": {"message": f"The model `{sent.get('model')}` does not exist.", "code": 404}}
        if refusal is None and played.needs_reasoning and not _has_reasoning(sent):
            refusal = _openai("The `reasoning_content` in the thinking mode must be passed back to the API.")
        if refusal is None and len(orjson.dumps(sent)) > 8 * WINDOW:
            refusal = played.too_long
        if refusal is None:
            return await super()._serve(request)
        self._record(request, sent).outcome = "refused"
        status, said = refusal
        return web.Response(status=status, text=said if isinstance(said, str) else orjson.dumps(said).decode())

    async def _answer(self, recorded: RecordedRequest, reply: Reply) -> web.Response:
        response = await super()._answer(recorded, reply)
        assert isinstance(response.body, bytes)
        answer, played = orjson.loads(response.body), self._played
        choice, counts = answer["choices"][0], answer.pop("usage")
        if played.usage is not None:
            both = counts["prompt_tokens"], max(1, counts["completion_tokens"])
            answer["usage"] = dict(zip(played.usage, both, strict=True)) | {"total_tokens": sum(both)}
        if choice["finish_reason"] == "stop":
            is_stopped = any(stop in reply.text for stop in recorded.body.get("stop") or ())
            finish = played.stop_finish if is_stopped and played.stop_finish else played.finish
            choice["finish_reason"] = played.call_finish if reply.calls else finish
        if message := choice.get("message"):
            if played.reasoning:
                message[played.reasoning] = "Let me think."
            if reply.calls:
                message["content"] = played.calls_content
            for place, call in enumerate(message.get("tool_calls", ())):
                call["id"] = played.call_id(place)
                if call["id"] is None:
                    del call["id"]
                if played.arguments == "object":
                    call["function"]["arguments"] = orjson.loads(call["function"]["arguments"])
        if played.stops != "kept":
            choice.pop("stop_reason", None)
        return web.Response(body=orjson.dumps(answer), content_type="application/json")


def _has_reasoning(sent: Mapping[str, Any]) -> bool:
    turns = [message for message in sent.get("messages", ()) if message.get("tool_calls")]
    return all("reasoning_content" in message for message in turns)
