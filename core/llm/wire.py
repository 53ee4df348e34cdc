"""The OpenAI-compatible dialect: request bodies, answers, and what kind of failure a reply is.

Pure functions over bytes; nothing here waits. Replies are untrusted: whatever they hold ends in a `Completion` or in
a `Failure`, never in another exception.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from treadle.core.llm.config import Sampling
from treadle.core.llm.hosted import fit
from treadle.core.llm.types import CompletionRequest

_CONTEXT_WORDS = re.compile(
    r"context[ _](?:length|size|window)|maximum model length|max_model_len|maximum sequence length"
    r"|longer than the (?:model|maximum)|prompt is too long|exceed_context|or model output limit was reached",
    re.IGNORECASE,
)
_MESSAGE_LIMIT = 300


class Failure(Exception):
    """One failed attempt.

    `kind` is `connect`, `reset`, `timeout`, `server`, `malformed` or `rate_limit` (all tried again), or `context` or
    `refused` (final). `retry_after_s` is what the server asked for.
    """

    def __init__(self, kind: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s


FINAL_KINDS = frozenset({"context", "refused"})


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of a reply that matter, checked."""

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str
    stop_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    prompt_ids: tuple[int, ...] | None = None
    """The prompt as the server understood it, where it says so (vLLM: `prompt_token_ids`); read by the preflight."""


def completion_body(model: str, request: CompletionRequest, want_ids: bool) -> bytes:
    """JSON body for POST /completions."""
    body: dict[str, Any] = {"model": model, "prompt": request.prompt}
    _add_sampling(body, request.sampling, request.max_tokens, request.seed)
    body["stop"] = request.stop
    body["include_stop_str_in_output"] = True
    if want_ids:
        body["return_token_ids"] = True
    return _dump(body)


def chat_body(
    model: str,
    messages: Sequence[Mapping[str, str]],
    sampling: Sampling,
    seed: int,
    stop: Sequence[str] = (),
    *,
    chat_only: bool = False,
    refused: Collection[str] = (),
) -> bytes:
    """JSON body for POST /chat/completions.

    For services that are `chat_only`, keys beyond OpenAI's own are left out where they change nothing, and those that
    the service has `refused` as `treadle.core.llm.hosted.fit` says.
    """
    body: dict[str, Any] = {"model": model, "messages": [dict(message) for message in messages]}
    _add_sampling(body, sampling, sampling.max_tokens, seed)
    if stop:
        body["stop"] = list(stop)
        if not chat_only:
            body["include_stop_str_in_output"] = True
    if chat_only:
        fit(body, refused)
    return _dump(body)


def _dump(body: dict[str, Any]) -> bytes:
    try:
        # A copy, because orjson's own bytes keep a buffer many times their size, and thousands of bodies wait at once.
        return bytes(memoryview(orjson.dumps(body)))
    except TypeError:  # a lone surrogate, which JSON cannot carry
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _add_sampling(body: dict[str, Any], sampling: Sampling, max_tokens: int, seed: int) -> None:
    body["max_tokens"] = max_tokens
    body["temperature"] = sampling.temperature
    body["top_p"] = sampling.top_p
    body["top_k"] = sampling.top_k
    body["min_p"] = sampling.min_p
    body["repetition_penalty"] = sampling.repetition_penalty
    body["seed"] = seed


def parse_completion(data: bytes) -> Answer:
    """Read a completion; raises Failure of kind `malformed`, or `server` where the server itself gave up."""
    reply, choice = _first_choice(data)
    ids = choice.get("token_ids")
    return _answer(reply, choice, choice.get("text"), _checked_ids(ids))


def parse_probe(data: bytes) -> Answer:
    """Read a completion like `parse_completion`, with the ids of its prompt."""
    _, choice = _first_choice(data)
    return replace(parse_completion(data), prompt_ids=_checked_ids(choice.get("prompt_token_ids")))


def parse_chat(data: bytes) -> Answer:
    """Read a chat completion; raises Failure like `parse_completion`.

    Null content is no text: a model that was cut off while it thought has said nothing yet. What it says in refusing is
    a text like any other.
    """
    reply, choice = _first_choice(data)
    message = choice.get("message")
    if not isinstance(message, dict) or "content" not in message:
        return _answer(reply, choice, None, None)
    content = message["content"]
    if content is None:
        content = message.get("refusal") or ""
    return _answer(reply, choice, content, None)


def _first_choice(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        reply = orjson.loads(data)
        choice = reply["choices"][0]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        raise Failure("malformed", f"the answer is not a completion: {excerpt(data)}") from None
    if not isinstance(reply, dict) or not isinstance(choice, dict):
        raise Failure("malformed", f"the answer is not a completion: {excerpt(data)}")
    return reply, choice


def _answer(reply: dict[str, Any], choice: dict[str, Any], text: object, ids: tuple[int, ...] | None) -> Answer:
    if not isinstance(text, str):
        raise Failure("malformed", "the answer has no text")
    finish = choice.get("finish_reason")
    if finish in (None, "abort", "error"):
        raise Failure("server", f"the server gave up on the request (finish_reason {finish!r})")
    stop = choice.get("stop_reason")
    prompt_tokens, completion_tokens = _usage(reply.get("usage"))
    return Answer(
        text=text,
        token_ids=ids,
        finish_reason=finish if finish in ("length", "content_filter") else "stop",
        stop_reason=stop if isinstance(stop, str) else None,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )


def _usage(usage: object) -> tuple[int, int]:
    if isinstance(usage, dict):
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
        if type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0:
            return prompt, completion
    raise Failure("malformed", "the answer has no token usage")


def _checked_ids(ids: object) -> tuple[int, ...] | None:
    if ids is None:
        return None
    try:
        # One pass in C: takes integers of 32 bits and nothing else.
        checked = tuple(array("i", ids)) if isinstance(ids, list) else None
    except (TypeError, OverflowError):
        checked = None
    if checked is None or (checked and min(checked) < 0):
        raise Failure("malformed", "the answer's token_ids are not a list of ids")
    return checked


def failure_of(status: int, headers: Mapping[str, str], data: bytes) -> Failure:
    """Classify a reply whose status is not 200."""
    message = f"HTTP {status}: {error_message(data)}"
    retry_after = parse_retry_after(headers.get("Retry-After"))
    if status == 429 or (status == 503 and retry_after is not None):
        return Failure("rate_limit", message, retry_after)
    if status == 408:
        return Failure("timeout", message)
    if status >= 500:
        return Failure("server", message, retry_after)
    if status in (400, 413, 422) and _CONTEXT_WORDS.search(data.decode("utf-8", "replace")):
        return Failure("context", message)
    return Failure("refused", message + _advice(status))


def _advice(status: int) -> str:
    if status in (401, 403):
        return "; check the key named by api_key_env"
    if status == 404:
        return "; check the endpoint's url (it ends in /v1) and the model's name"
    if 300 <= status < 400:
        return "; redirects are not followed, write the final URL"
    return ""


def error_message(data: bytes) -> str:
    """The server's own words, safe for a terminal and short."""
    try:
        reply = orjson.loads(data)
    except orjson.JSONDecodeError:
        return excerpt(data)
    error = reply.get("error", reply) if isinstance(reply, dict) else reply
    message = error.get("message") if isinstance(error, dict) else error
    return excerpt(message.encode("utf-8", "replace")) if isinstance(message, str) else excerpt(data)


def excerpt(data: bytes) -> str:
    """The first characters of untrusted bytes on one line, without control characters."""
    text = data[: 4 * _MESSAGE_LIMIT].decode("utf-8", "replace")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line[:_MESSAGE_LIMIT] + ("…" if len(line) > _MESSAGE_LIMIT else "") or "(empty)"


def parse_retry_after(value: str | None) -> float | None:
    """Seconds of a `Retry-After` header; None if absent or unreadable. Dates are not read: clocks may differ."""
    if value is None or not re.fullmatch(r"\s*\d{1,9}(?:\.\d{1,6})?\s*", value):
        return None
    return float(value)
