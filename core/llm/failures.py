"""Classify failed attempts of requests to model servers and other services, and quote what they say.

Replies are untrusted: every one has a class and a short, printable message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from treadle.core.untrusted.json_text import load_json

_CONTEXT_WORDS = re.compile(
    r"context[ _](?:length|size|window|limit)|maximum model length|max_model_len|maximum sequence length"
    r"|longer than the (?:model|maximum)|prompt is too long|exceed_context|or model output limit was reached"
    # TGI, Gemini, Bedrock, DashScope and xAI.
    r"|`inputs` must have less than \d+ tokens|`inputs` tokens \+ `max_new_tokens` must be"
    r"|exceeds the maximum number of tokens allowed|input is too long for requested model"
    r"|range of input length should be|maximum prompt length is",
    re.IGNORECASE,
)
_MESSAGE_LIMIT = 300
_READ_BYTES = 64 << 10
"""Maximum number of bytes of an error reply that are searched for known words."""
_NO_CREDIT = re.compile(r"insufficient_quota|credit balance is too low", re.IGNORECASE)
_TOO_MANY_NEW = re.compile(
    r"max_(?:completion_)?tokens\b[^.]{0,40}\bis too large[^.]{0,20}\. This model supports at most"
    r"|max_(?:completion_)?tokens\b[^.]{0,40}\bmaximum allowed number of output tokens"
    r"|valid range of max_(?:completion_)?tokens\b",
    re.IGNORECASE,
)
"""Refusals because `max_tokens` exceeds the model's own limit, whatever the prompt."""
_WAIT = re.compile(
    r"\"retryDelay\"\s{0,4}:\s{0,4}\"([0-9]{1,6}(?:\.[0-9]{1,9})?)(s)\""
    r"|\b(?:try again|retry) (?:in|after) ([0-9]{1,6}(?:\.[0-9]{1,9})?) ?(ms|s)(?:econds?|\b)",
    re.IGNORECASE,
)
_TITLE = re.compile(rb"<title[^>]{0,99}>([^<]{1,300})</title", re.IGNORECASE)


class Failure(Exception):
    """Failed attempt of a request.

    `kind` is `connect`, `reset`, `timeout`, `silence` (of the whole server), `server`, `malformed` or `rate_limit` (all
    retried), or `context` or `refused` (final). `retry_after_s` is the pause that the server asked for. `oddity` is the
    kind of a malformed answer: a key of `treadle.core.llm.oddities.ODDITIES`.
    """

    def __init__(
        self, kind: str, message: str, retry_after_s: float | None = None, *, oddity: str = "unusable"
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.oddity = oddity


FINAL_KINDS = frozenset({"context", "refused"})


def malformed(oddity: str, message: str) -> Failure:
    """Return the failure for a malformed answer of a kind in `treadle.core.llm.oddities.ODDITIES`."""
    return Failure("malformed", message, oddity=oddity)


def failure_of(status: int, headers: Mapping[str, str], data: bytes) -> Failure:
    """Classify a reply whose status is not 200."""
    message = f"HTTP {status}: {error_message(data)}"
    said = data[:_READ_BYTES].decode("utf-8", "replace")
    retry_after = _pause(headers, said)
    if status == 429 and retry_after is None and _NO_CREDIT.search(said):
        return Failure("refused", f"{message}; the account has no credit left, so waiting does not help")
    # 529 is Anthropic's "overloaded".
    if status in (429, 529) or (status == 503 and retry_after is not None):
        return Failure("rate_limit", message, retry_after)
    if status == 408:
        return Failure("timeout", message)
    if status >= 500:
        return Failure("server", message, retry_after)
    if status in (400, 413, 422) and _TOO_MANY_NEW.search(said):
        return Failure("refused", f"{message}; lower max_tokens in the sampling of this model's role")
    if status in (400, 413, 422) and _CONTEXT_WORDS.search(data.decode("utf-8", "replace")):
        return Failure("context", message)
    return Failure("refused", message + _advice(status))


def _pause(headers: Mapping[str, str], said: str) -> float | None:
    """Return the seconds that a service asks to wait, in a header or its words; None if it does not say."""
    for name, scale in (("Retry-After", 1.0), ("Retry-After-Ms", 1000.0)):
        if (seconds := parse_retry_after(headers.get(name))) is not None:
            return seconds / scale
    if (found := _WAIT.search(said)) is None:
        return None
    number, unit = next((found[place], found[place + 1]) for place in (1, 3) if found[place])
    return float(number) / (1000.0 if unit.lower() == "ms" else 1.0)


def _advice(status: int) -> str:
    if status in (401, 403):
        return "; check the key named by api_key_env"
    if status == 402:
        return "; the account has no credit left"
    if status == 404:
        return "; check the endpoint's url (it ends in /v1) and the model's name"
    if 300 <= status < 400:
        return "; redirects are not followed, write the final URL"
    return ""


def error_message(data: bytes) -> str:
    """Return the server's error message, or the title of a proxy's page, short and safe for a terminal."""
    try:
        reply = load_json(data)
    except orjson.JSONDecodeError:
        title = _TITLE.search(data[:_READ_BYTES])
        return excerpt(title[1] if title else data)
    if isinstance(reply, list) and len(reply) == 1:  # Gemini
        (reply,) = reply
    error = reply.get("error", reply) if isinstance(reply, dict) else reply
    message = error.get("message") if isinstance(error, dict) else error
    return excerpt(message.encode("utf-8", "replace")) if isinstance(message, str) else excerpt(data)


def excerpt(data: bytes) -> str:
    """Return the first characters of untrusted bytes on one line, without control characters."""
    text = data[: 4 * _MESSAGE_LIMIT].decode("utf-8", "replace")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line[:_MESSAGE_LIMIT] + ("…" if len(line) > _MESSAGE_LIMIT else "") or "(empty)"


def excerpt_of(value: object) -> str:
    """Return the excerpt of an untrusted value's repr."""
    try:
        said = repr(value)
    except RecursionError:
        said = f"a {type(value).__name__} that is nested too deeply"
    return excerpt(said[: 4 * _MESSAGE_LIMIT].encode("utf-8", "replace"))


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds in a `Retry-After` header; None if absent or unreadable. Dates are ignored: clocks differ."""
    if value is None or not re.fullmatch(r"[ \t]*[0-9]{1,9}(?:\.[0-9]{1,6})?[ \t]*", value):
        return None
    return float(value)
