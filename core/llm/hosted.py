"""Adapt requests to hosted chat services that refuse some keys of a request.

Services differ in the keys they accept, and report that only in errors (HTTP 400 or 422), each in its own words. The
preflight learns from these errors which keys to leave out; no model is known by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import orjson

from treadle.core.untrusted.json_text import load_json

FIXED_VALUES = {"temperature": 1.0, "top_p": 1.0}
"""Values that a service samples with if it does not accept the key."""
MAX_STOPS = 4
"""Most stop strings that OpenAI's API accepts."""
WHOLE_TOP_P = "top_p = 1"
"""Entry of the refused keys for a server that refuses only the value 1 of `top_p` (TGI). A `top_p` of 1 is then left
out of requests, which means the same."""
_WHOLE_TOP_P = re.compile(r"\btop_p\b\W+must be\b[^.]*> 0\.0 and < 1\.0")
SYSTEM = "system messages"
"""Entry of the refused keys for a service that refuses the role `system`: the text of such messages is then put before
that of the user message after them."""
_NO_SYSTEM = re.compile(
    # Gemma's template in vLLM and llama.cpp; OpenAI's o1-mini; Gemma at Google.
    r"\bsystem role (?:is )?not supported|\bdoes not support 'system'|\bdeveloper instruction is not enabled"
    r"|\bsystem (?:messages?|prompts?|instructions?) (?:is|are) not (?:supported|enabled|allowed)",
    re.IGNORECASE,
)
_NEEDS_REASONING = re.compile(r"reasoning_content\b.{0,80}\b(?:must be passed back|is (?:missing|required))", re.DOTALL)
_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sampling keys that OpenAI's API lacks, and the values that change nothing."""
_REFUSABLE = ("parallel_tool_calls", "tool_choice", "max_tokens", "stop", "seed", "top_p", "temperature")
"""Keys that a request can do without, the least important first. Of several keys that exclude each other, only the
first one is dropped."""
_REFUSAL = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|cannot both|forbidden",
    re.IGNORECASE,
)
_KEYS = frozenset({"model", "messages", "tools", "max_completion_tokens", *_REFUSABLE, *_NEUTRAL})
"""All keys that a request may have."""
_READ_BYTES = 64 << 10
_MARKS = re.compile(r"""[{}]|["']messages\\*["']\s*:\s*\[\s*(?=\{)""")
"""Pattern of what shows a copy of a request in an error reply: braces, and the key `messages` with a list of objects,
which only a request has."""


def fit(body: dict[str, Any], refused: Collection[str]) -> None:
    """Remove keys from a request's body that the service refuses, or that it may not know and that change nothing.

    `refused` are keys as returned by `refused_keys`: `max_tokens` becomes `max_completion_tokens`, `stop` and `seed`
    are removed, like the keys of tool calls besides `tools`; `temperature` and `top_p` are removed if they have the
    service's own value. Only the first `MAX_STOPS` stop strings are kept.
    """
    if "stop" in body:
        body["stop"] = body["stop"][:MAX_STOPS]
    if "max_tokens" in refused:
        body["max_completion_tokens"] = body.pop("max_tokens")
    fixed = {name: value for name, value in FIXED_VALUES.items() if name in refused}
    for name, neutral in {**_NEUTRAL, **fixed}.items():
        if body[name] == neutral:
            del body[name]
    for name in ("stop", "seed", "parallel_tool_calls", "tool_choice"):
        if name in refused:
            body.pop(name, None)
    leave_out_whole_top_p(body, refused)


def leave_out_whole_top_p(body: dict[str, Any], refused: Collection[str]) -> None:
    """Remove a `top_p` of 1 from a request's body if the server takes every value but that."""
    if WHOLE_TOP_P in refused and body.get("top_p") == 1.0:
        del body["top_p"]


def fold_system(body: dict[str, Any], refused: Collection[str]) -> None:
    """Move the text of a request's leading system messages into the user message after them, if `SYSTEM` is refused."""
    messages = body.get("messages", [])
    number = next((place for place, one in enumerate(messages) if one["role"] != "system"), len(messages))
    if SYSTEM not in refused or not 0 < number < len(messages) or messages[number]["role"] != "user":
        return
    content = messages[number]["content"]
    texts = [str(one["content"]) for one in messages[:number]]
    if isinstance(content, list):  # of parts, such as pictures
        folded: Any = [{"type": "text", "text": "\n\n".join(texts)}, *content]
    else:
        folded = "\n\n".join([*texts, str(content)])
    body["messages"] = [{**messages[number], "content": folded}, *messages[number + 1 :]]


def refuses_system(status: int, data: bytes) -> bool:
    """Return whether an error reply refuses the role `system`."""
    said = data[:_READ_BYTES].decode("utf-8", "replace")
    return status in (400, 422, 500) and _NO_SYSTEM.search(_without_requests(said)) is not None


def refused_keys(status: int, data: bytes) -> tuple[str, ...]:
    """Return the keys that an error reply refuses and a request can do without, the least important first.

    Other replies give none. If the reply points to keys (`param` of OpenAI's errors, `loc` of pydantic's), only these
    count, else those that its text names. If the reply contains a copy of the request, the keys in it do not count.
    `max_tokens` counts only if the reply also names `max_completion_tokens`.
    """
    if status not in (400, 422):
        return ()
    said = _without_requests(data.decode("utf-8", "replace"))
    if _WHOLE_TOP_P.search(said):
        return (WHOLE_TOP_P,)
    pointed = _pointed(data)
    if not pointed and not _REFUSAL.search(said):
        return ()
    named = [name for name in _REFUSABLE if (name in pointed if pointed else _names(said, name))]
    if "max_tokens" in named and "max_completion_tokens" not in said:
        named.remove("max_tokens")
    return tuple(named)


def needs_reasoning(status: int, data: bytes) -> bool:
    """Return whether an error reply demands that `reasoning_content` be sent back with the calls that it led to."""
    said = _without_requests(data.decode("utf-8", "replace"))
    return status in (400, 422) and _NEEDS_REASONING.search(said) is not None


def _without_requests(said: str) -> str:
    """Replace each copy of the request in an error reply by `null`, because it names keys that are not refused.

    A copy is the innermost object around a key `messages`, in JSON or Python syntax. If its closing brace is missing,
    because the service cut the reply, it extends to the end of the reply.
    """
    begun: list[int] = []
    requests: set[int] = set()
    found: list[tuple[int, int]] = []
    for mark in _MARKS.finditer(said):
        if mark[0] == "{":
            begun.append(mark.start())
        elif mark[0] != "}":
            requests.update(begun[-1:])
        elif begun and (start := begun.pop()) in requests:
            found.append((start, mark.end()))
    found += [(start, len(said)) for start in begun if start in requests]
    kept, end = [], 0
    for start, stop in sorted(found):
        if start >= end:
            kept += [said[end:start], "null"]
            end = stop
    return "".join([*kept, said[end:]])


def _pointed(data: bytes) -> set[str]:
    """Return the request keys that the errors in a reply point to; none if it is not JSON."""
    try:
        parts = [load_json(data)]
    except orjson.JSONDecodeError:
        return set()
    found = set()
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict) and not _is_request(part):
            parts += part.values()
            words = " ".join(value for value in part.values() if isinstance(value, str))
            if _REFUSAL.search(_without_requests(words)) and (key := _place(part.get("param") or part.get("loc"))):
                found.add(key)
    return found


def _is_request(part: dict[str, Any]) -> bool:
    messages = part.get("messages")
    return isinstance(messages, list) and any(isinstance(item, dict) for item in messages)


def _place(told: Any) -> str:
    """Return the request key in a location such as `stop[0]` or `["body", "stop", 0]`; empty if there is none."""
    steps = " ".join(map(str, told)) if isinstance(told, list) else str(told)
    return next((word for word in re.findall(r"\w+", steps) if word in _KEYS), "")


def _names(said: str, key: str) -> bool:
    # Words such as "stop" name the key only in quotes; in JSON within JSON the quotes are escaped.
    pattern = rf"\b{key}\b" if "_" in key else rf"[\"'`]{key}\\?[\"'`]"
    return re.search(pattern, said) is not None
