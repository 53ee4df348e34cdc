"""What hosted chat services refuse in a request, and how it is asked without that.

Services differ in the keys they take, and say so only in a refusal (HTTP 400 or 422), each in its own words. The
preflight learns from these what can be done without; nothing is known about any model by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

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

    `max_tokens` is one of them only where the reply names `max_completion_tokens` as well.
    """
    said = data.decode("utf-8", "replace")
    if status not in (400, 422) or not _REFUSAL.search(said):
        return ()
    named = [name for name in _REFUSABLE if _names(said, name)]
    if "max_tokens" in named and "max_completion_tokens" not in said:
        named.remove("max_tokens")
    return tuple(named)


def _names(said: str, key: str) -> bool:
    # Words such as "stop" mean the key only where they are quoted; in JSON within JSON the quotes are escaped.
    pattern = rf"\b{key}\b" if "_" in key else rf"[\"'`]{key}\\?[\"'`]"
    return re.search(pattern, said) is not None
