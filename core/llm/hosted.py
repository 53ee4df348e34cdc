"""What hosted chat services refuse in a request, and how it is asked without that.

Services differ in the keys they take, and say so only in a refusal (HTTP 400 or 422), each in its own words. The
preflight learns from these what can be done without; nothing is known about any model by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import orjson

FIXED_VALUES = {"temperature": 1.0, "top_p": 1.0}
"""What services sample with that do not let it be said."""
_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sampling keys beyond OpenAI's own, and the values that change nothing."""
_REFUSABLE = ("max_tokens", "stop", "seed", "top_p", "temperature")
"""The most harmless ones first: of several that cannot stand together one is given up."""
_REFUSAL = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|cannot both|forbidden",
    re.IGNORECASE,
)
_KEYS = frozenset({"model", "messages", "max_completion_tokens", *_REFUSABLE, *_NEUTRAL})
"""All that a request may have."""
_MARKS = re.compile(r"""[{}]|["']messages\\*["']\s*:\s*\[\s*(?=\{)""")
"""Where objects begin and end, and what only a request has."""


def fit(body: dict[str, Any], refused: Collection[str]) -> None:
    """Take from a request's body what a service does not know and what changes nothing.

    `refused` are keys as `refused_keys` names them: `max_tokens` becomes `max_completion_tokens`, `stop` and `seed`
    go, values of sampling go where they are those that the service has anyway.
    """
    if "max_tokens" in refused:
        body["max_completion_tokens"] = body.pop("max_tokens")
    fixed = {name: value for name, value in FIXED_VALUES.items() if name in refused}
    for name, neutral in {**_NEUTRAL, **fixed}.items():
        if body[name] == neutral:
            del body[name]
    for name in ("stop", "seed"):
        if name in refused:
            body.pop(name, None)


def refused_keys(status: int, data: bytes) -> tuple[str, ...]:
    """Keys that a reply refuses and that can be done without, the most harmless one first; none in other replies.

    Where the reply says which key it is about (`param` of OpenAI's errors, `loc` of pydantic's), these count alone, and
    else those that its words name. What it repeats of the request counts for nothing. `max_tokens` is one of them only
    where the reply names `max_completion_tokens` as well.
    """
    if status not in (400, 422):
        return ()
    said = _without_requests(data.decode("utf-8", "replace"))
    pointed = _pointed(data)
    if not pointed and not _REFUSAL.search(said):
        return ()
    named = [name for name in _REFUSABLE if (name in pointed if pointed else _names(said, name))]
    if "max_tokens" in named and "max_completion_tokens" not in said:
        named.remove("max_tokens")
    return tuple(named)


def _without_requests(said: str) -> str:
    """A reply with `null` for each request that it repeats: as JSON or in Python's spelling, whole or cut off."""
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
    """Keys of a request that the refusals in a reply point to, if it is JSON."""
    try:
        parts = [orjson.loads(data)]
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
    """The key in a place such as `stop[0]` or `["body", "stop", 0]`; empty for none of a request."""
    steps = " ".join(map(str, told)) if isinstance(told, list) else str(told)
    return next((word for word in re.findall(r"\w+", steps) if word in _KEYS), "")


def _names(said: str, key: str) -> bool:
    # Words such as "stop" mean the key only where they are quoted; in JSON within JSON the quotes are escaped.
    pattern = rf"\b{key}\b" if "_" in key else rf"[\"'`]{key}\\?[\"'`]"
    return re.search(pattern, said) is not None
