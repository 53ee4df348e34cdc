"""Build requests for the OpenAI-compatible API, and parse answers.

Pure functions over bytes; nothing here waits. Replies are untrusted: every one results in an `Answer` or a `Failure`,
never in another exception.
"""

from __future__ import annotations

import base64
import json
import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from treadle.core.llm.config import Sampling
from treadle.core.llm.failures import Failure, error_message, excerpt, excerpt_of, failure_of, malformed
from treadle.core.llm.hosted import fit, fold_system, leave_out_whole_top_p
from treadle.core.llm.types import CompletionRequest, ToolCall
from treadle.core.untrusted.json_text import load_json

_SURROGATE = re.compile("[\ud800-\udfff]")
_LARGEST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Answer:
    """Checked parts of a reply."""

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str
    stop_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    own_end: bool = False
    """Whether the server reports that the model ended its turn by itself, so that no stop string did."""
    model: str | None = None
    """Name of the model according to the server."""
    largest_id: int = -1
    """Largest of `token_ids`; -1 if there are none."""
    notes: tuple[str, ...] = ()
    """Oddities of an answer that is kept nevertheless: keys of `treadle.core.llm.oddities.ODDITIES`."""
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the prompt, if the server returns them (vLLM: `prompt_token_ids`); only the preflight reads them."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls of a chat answer."""
    reasoning: str = ""
    """Reasoning of a chat answer, outside its text."""
    prompt_logprobs: tuple[float, ...] | None = None
    """Log-probabilities of the prompt's ids after the first, if they were asked for."""


_FINISH = {
    "stop": "stop",
    "eos_token": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_length": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "prohibited_content": "content_filter",
    "tool_calls": "stop",
    "function_call": "stop",
    "tool_use": "stop",
}
"""Finish reason of a server, in lower case -> finish reason of an `Answer`. Gateways pass on those of Anthropic, Gemini
and Mistral."""
_OWN_END = frozenset({"eos_token", "eos", "end_turn", "tool_calls", "function_call", "tool_use"})
_GAVE_UP = (None, "abort", "error", "cancelled", "insufficient_system_resource")


_NOTHING: Mapping[str, Any] = {}


def completion_body(
    model: str,
    request: CompletionRequest,
    want_ids: bool,
    *,
    extra: Mapping[str, Any] = _NOTHING,
    refused: Collection[str] = (),
) -> bytes:
    """Return the JSON body for POST /completions, with the additional keys `extra`.

    If `refused` contains `WHOLE_TOP_P`, a `top_p` of 1 is left out.
    """
    body: dict[str, Any] = {"model": model, "prompt": request.prompt}
    _add_sampling(body, request.sampling, request.max_tokens, request.seed)
    body["stop"] = request.stop
    body["include_stop_str_in_output"] = True
    if want_ids:
        body["return_token_ids"] = True
    if request.scores_prompt:
        body["prompt_logprobs"] = 0  # those of the prompt's own ids, without likelier ones
    leave_out_whole_top_p(body, refused)
    body.update(extra)
    return _dump(body)


def chat_body(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    seed: int,
    stop: Sequence[str] = (),
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    chat_only: bool = False,
    refused: Collection[str] = (),
    extra: Mapping[str, Any] = _NOTHING,
) -> bytes:
    """Return the JSON body for POST /chat/completions, with the additional keys `extra`.

    If `chat_only`, keys that OpenAI's API lacks are left out if they change nothing, and keys in `refused` are handled
    as `treadle.core.llm.hosted.fit` describes. `tools` are tools as OpenAI's API takes them; with tools the model may
    call several of them in one answer, or none.
    """
    body: dict[str, Any] = {"model": model, "messages": [dict(message) for message in messages]}
    _add_sampling(body, sampling, sampling.max_tokens, seed)
    if stop:
        body["stop"] = list(stop)
        if not chat_only:
            body["include_stop_str_in_output"] = True
    if tools:
        body |= {"tools": list(tools), "tool_choice": "auto", "parallel_tool_calls": True}
    if chat_only:
        fit(body, refused)
    else:
        leave_out_whole_top_p(body, refused)
    fold_system(body, refused)
    body.update(extra)
    return _dump(body)


def image_message(text: str, picture: bytes, media_type: str) -> dict[str, Any]:
    """Return a user message of a text and a picture, which travels as a data URL; for the chat route alone."""
    return {"role": "user", "content": [{"type": "text", "text": text}, image_part(picture, media_type)]}


def image_part(picture: bytes, media_type: str) -> dict[str, Any]:
    """Return a picture as a part of a message, which has a list of such parts and texts as its content."""
    url = f"data:{media_type};base64,{base64.b64encode(picture).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def num_images(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many pictures messages hold."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(part.get("type") == "image_url" for part in parts)


def _dump(body: dict[str, Any]) -> bytes:
    try:
        # A copy: orjson's own bytes keep a buffer many times their size, and thousands of bodies wait at once.
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
    """Parse a completion; raise Failure of kind `malformed`, or `server` if the server itself gave up.

    An error in a reply with status 200 is classified by the status in its `code`, if it has one.
    """
    reply, choice = only_choice(data)
    ids, largest = _checked_ids(choice.get("token_ids"), data)
    return _answer(reply, choice, choice.get("text"), data, ids, largest)


def parse_probe(data: bytes) -> Answer:
    """Parse a completion like `parse_completion`, with the token ids of its prompt."""
    _, choice = only_choice(data)
    return replace(parse_completion(data), prompt_ids=_checked_ids(choice.get("prompt_token_ids"), data)[0])


def parse_chat(data: bytes) -> Answer:
    """Parse a chat completion; raise Failure like `parse_completion`.

    Null content is empty text: a model that was cut off while it was thinking has written nothing yet, and one that
    calls tools may write none. The text of a `refusal` is treated like any other. Content in parts is joined.
    """
    reply, choice = only_choice(data)
    message = choice.get("message")
    if not isinstance(message, dict):
        return _answer(reply, choice, None, data)
    calls = _tool_calls(message)
    reasoning = message.get("reasoning_content") or message.get("reasoning") or _detailed_reasoning(message)
    is_cut = choice.get("finish_reason") in _CUT
    content = message.get("content", "" if calls or "tool_calls" in message or reasoning or is_cut else _MISSING)
    if isinstance(content, list):
        content, thoughts = _texts_of(content)
        reasoning = reasoning or thoughts
    if content is None:
        content = message.get("refusal") or ""
    answer = _answer(reply, choice, content, data)
    if not calls and not reasoning:  # the usual case
        return answer
    if not isinstance(reasoning, str):
        raise malformed("no_completion", "the answer's reasoning is no text")
    if not content.strip() and not calls:
        answer = replace(answer, notes=(*answer.notes, "only_reasoning"))
    return replace(answer, tool_calls=calls, reasoning=_unicode(reasoning), own_end=answer.own_end or bool(calls))


_MISSING = object()
_CUT = ("length", "max_tokens", "MAX_TOKENS", "content_filter", "SAFETY")
"""Finish reasons of answers that may lack a content: Gemini leaves it out then."""


def _detailed_reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning in `reasoning_details` (OpenRouter); encrypted parts have none."""
    details = message.get("reasoning_details")
    parts = [part for part in details if isinstance(part, dict)] if isinstance(details, list) else []
    texts = [part.get("text") or part.get("summary") for part in parts]
    return "".join([text for text in texts if isinstance(text, str)])


def _texts_of(parts: list[Any]) -> tuple[str, str]:
    """Return text and reasoning of content in parts; other parts are malformed.

    Mistral's reasoning models send such parts; gateways pass on those of Anthropic and of OpenAI's Responses API.
    """
    text, thoughts = [], []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "output_text") and isinstance(part.get("text"), str):
            text.append(part["text"])
        elif kind in ("tool_use", "redacted_thinking"):
            continue  # calls are in `tool_calls`
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            text.append(part["refusal"])
        elif kind == "thinking":
            inner = part.get("thinking")
            thoughts.append(_texts_of(inner)[0] if isinstance(inner, list) else str(inner))
        else:
            raise malformed("no_text", f"a part of the answer's content is no text: {excerpt_of(part)}")
    return "".join(text), "".join(thoughts)


def _tool_calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """Return the tool calls of a message; raise Failure of kind `malformed` if they have another form.

    Arguments may be an object instead of its JSON text, as some servers send them. Their
    validity is not checked here: the model wrote them.
    """
    listed = message.get("tool_calls")
    if not listed:
        older = message.get("function_call")
        listed = [{"function": older}] if older else []
    if not isinstance(listed, list):
        raise malformed("bad_tool_calls", "the answer's tool_calls are not a list")
    calls = []
    for one in listed:
        function = one.get("function") if isinstance(one, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            raise malformed("bad_tool_calls", f"a tool call of the answer has no function: {excerpt_of(one)}")
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            try:
                arguments = json.dumps(arguments, ensure_ascii=False)
            except RecursionError:
                raise malformed("bad_tool_calls", "a tool call of the answer is nested too deeply") from None
        given = one.get("id")
        calls.append(ToolCall(_unicode(given) if isinstance(given, str) else "", _unicode(name), _unicode(arguments)))
    return tuple(calls)


def only_choice(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a reply and its only choice; raise Failure of kind `malformed` if it is not an answer with one choice."""
    try:
        reply = load_json(data, keep_surrogates=True)
    except orjson.JSONDecodeError:
        raise malformed("not_json", f"the answer is not JSON: {excerpt(data)}") from None
    if not isinstance(reply, dict):
        raise malformed("no_completion", f"the answer is not a completion: {excerpt(data)}")
    if error := reply.get("error"):
        raise _error_in_answer(error, data)
    choices = reply.get("choices")
    # One answer was asked for: among several, or with another index than the first, the right one is unknown.
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise malformed("no_completion", f"the answer is not a completion: {excerpt(data)}")
    choice = choices[0]
    if choice.get("index") not in (0, None):
        raise malformed("no_completion", f"the answer is choice {excerpt_of(choice['index'])} instead of 0")
    return reply, choice


def _error_in_answer(error: object, data: bytes) -> Failure:
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and re.fullmatch("[45][0-9]{2}", code):
        code = int(code)
    if type(code) is int and 400 <= code < 600:
        return failure_of(code, {}, data)
    return malformed("error", f"the answer is an error with HTTP 200: {error_message(data)}")


def _answer(
    reply: dict[str, Any],
    choice: dict[str, Any],
    text: object,
    data: bytes,
    ids: tuple[int, ...] | None = None,
    largest_id: int = -1,
) -> Answer:
    if not isinstance(text, str):
        raise malformed("no_text", "the answer has no text")
    if text != _unicode(text):
        # Tables and prompts cannot hold such a text, and a changed text is not the model's.
        raise malformed("not_json", "the answer's text is not Unicode")
    said = choice.get("finish_reason")
    if (said.lower() if isinstance(said, str) else said) in _GAVE_UP:
        raise Failure("server", f"the server gave up on the request (finish_reason {said!r})")
    if not isinstance(said, str):
        raise malformed("no_completion", f"the answer's finish_reason is {excerpt_of(said)}")
    said = said.lower()
    finish = _FINISH.get(said)
    stop: object = None
    if finish == "stop":
        stop = choice.get("stop_reason")
        if stop is None:
            stop = choice.get("matched_stop")
    notes: tuple[str, ...] = ()
    if finish is None:
        finish, notes = "stop", ("unknown_finish",)
    elif finish == "content_filter":
        notes = ("content_filter",)
    prompt_tokens, completion_tokens = _usage(reply.get("usage"))
    model = reply.get("model")
    return Answer(
        text=text,
        token_ids=ids,
        finish_reason=finish,
        stop_reason=_unicode(stop) if isinstance(stop, str) else None,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        # A number is the id of an end-of-turn token.
        own_end=type(stop) is int or said in _OWN_END,
        model=_unicode(model) if isinstance(model, str) else None,
        largest_id=largest_id,
        notes=notes,
    )


def _unicode(text: str) -> str:
    """Return a text with U+FFFD for each lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _usage(usage: object) -> tuple[int, int]:
    if isinstance(usage, dict):
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        completion = usage.get("completion_tokens", usage.get("output_tokens", 0))
        if type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0:
            return prompt, completion
    raise malformed("no_usage", "the answer has no token usage")


def _checked_ids(ids: object, data: bytes) -> tuple[tuple[int, ...] | None, int]:
    """Return token ids and the largest of them, -1 if there are none."""
    if ids is None:
        return None, -1
    try:
        # One pass in C; it accepts unsigned 32-bit integers, and booleans too.
        checked = tuple(array("I", ids)) if isinstance(ids, list) else None
    except (TypeError, OverflowError):
        checked = None
    largest = max(checked) if checked else -1
    if checked is None or largest > _LARGEST_ID or _has_booleans(ids, data):
        raise malformed("bad_ids", "the answer's token_ids are not a list of ids")
    return checked, largest


def _has_booleans(ids: object, data: bytes) -> bool:
    if b"true" not in data and b"false" not in data:  # a hundred times faster than looking at each id
        return False
    return isinstance(ids, list) and bool in map(type, ids)
