"""A service like those that are hosted: chat alone, stop strings dropped, and keys that some of its models refuse."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer
from support.tables.given_questions import TOKENIZER

from treadle.agent.chat_prompts import CONTINUE_MESSAGE

Answering = Callable[[RecordedRequest], "Item | Awaitable[Item]"]


def hosted(script: Answering, *, drops_stops: bool = True, model: str = "scripted") -> ScriptedServer:
    """Return the service; it counts tokens as the tests' tokenizer does."""
    return ScriptedServer(
        script,
        model=model,
        codec=TOKENIZER,
        max_model_len=32768,
        chat_only=True,
        stops="dropped" if drops_stops else "kept",
    )


def turn_of(request: RecordedRequest) -> int:
    """Results that the agent had when it asked."""
    assert request.messages is not None
    return sum(message["role"] == "user" and message["content"] != CONTINUE_MESSAGE for message in request.messages) - 1


def agent_requests(server: ScriptedServer) -> list[RecordedRequest]:
    """Return the requests of rollouts, without those of the preflight."""
    return [request for request in server.requests if "question" in request.text.lower()]


def fussy(script: Answering, asked: list[str]) -> Answering:
    """Return a script that refuses keys with the messages of OpenAI's newest models; `asked` lists the refused keys."""

    def refusal(key: str, said: str) -> Fault:
        asked.append(key)
        return Fault.status(400, said)

    async def reply(request: RecordedRequest) -> Item:
        body = request.body
        unknown = sorted({"top_k", "min_p", "repetition_penalty", "include_stop_str_in_output"} & body.keys())
        if unknown:
            return refusal(unknown[0], f"Unrecognized request argument supplied: {unknown[0]}")
        if "max_tokens" in body:
            return refusal(
                "max_tokens",
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
                "instead.",
            )
        for key in ("temperature", "top_p"):
            if body.get(key, 1) != 1:
                return refusal(
                    key,
                    f"Unsupported value: '{key}' does not support {body[key]} with this model. Only the default (1) "
                    "value is supported.",
                )
        if "stop" in body:
            return refusal("stop", "Unsupported parameter: 'stop' is not supported with this model.")
        if body["max_completion_tokens"] == 1:
            return Fault.status(
                400, "Could not finish the message because max_tokens or model output limit was reached."
            )
        answer = script(request)
        return await answer if inspect.isawaitable(answer) else answer

    return reply
