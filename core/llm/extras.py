"""Check additional keys and headers of a model's requests (`extra_body`, `headers`, `headers_env`).

Keys that Treadle sets itself are refused, and so are headers that carry a secret in the configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "max_completion_tokens"}
)
_OWN = frozenset(
    {"model", "messages", "prompt", "seed", "stop", "include_stop_str_in_output", "return_token_ids", "tools"}
    | {"tool_choice", "parallel_tool_calls", "functions", "function_call"}
)
_UNREADABLE = frozenset({"n", "best_of", "stream", "stream_options", "echo"})
_OF_TEMPLATE = frozenset({"chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_OWN_HEADERS = frozenset(
    {"content-type", "content-length", "accept-encoding", "host", "connection", "transfer-encoding", "expect"}
)
_SECRET_HEADER = re.compile(r"authorization|cookie|key|token|secret|password|credential", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """Additional headers of a model's requests with their values, and those values that are secret."""

    values: Mapping[str, str]
    secrets: tuple[str, ...] = ()


NO_HEADERS = RequestHeaders({})


def check_extra_body(value: Mapping[str, Any]) -> None:
    """Raise ValueError for a key that Treadle sets itself, and for a value that JSON cannot carry."""
    for key, item in value.items():
        if key in _SAMPLING:
            raise ValueError(f"{key} is a sampling key: set it in the `sampling` of the stage or role")
        if key in _OWN:
            raise ValueError(f"Treadle sets {key} itself in every request; leave it out")
        if key in _UNREADABLE:
            raise ValueError(f"Treadle reads one whole answer per request; leave out {key}")
        if any(isinstance(part, float) and not math.isfinite(part) for part in _parts(item)):
            raise ValueError(f"{key} holds a number that JSON cannot carry")


def check_template_keys(value: Mapping[str, Any]) -> None:
    """Raise ValueError for a key about the server's chat template, which the completions route does not use."""
    if found := sorted(_OF_TEMPLATE & value.keys()):
        raise ValueError(
            f'extra_body: {found[0]} has no effect with api = "completions", whose prompts Treadle renders with the '
            'template in the tokenizer\'s folder; set api = "chat", or change that template'
        )


def check_headers(headers: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Raise ValueError for a name that is no header or Treadle's own, a secret in `headers`, and a name given twice.

    `variables` are the names of headers with the environment variables that hold their values.
    """
    seen: set[str] = set()
    for name in (*headers, *variables):
        if not _HEADER.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"Treadle sets the header {name} itself; leave it out")
        if name.lower() in seen:
            raise ValueError(f"the header {name} is given twice")
        seen.add(name.lower())
    for name, text in headers.items():
        if _SECRET_HEADER.search(name):
            # The value is not repeated: it may be the secret itself.
            raise ValueError(
                f"the header {name} carries a secret: put it into an environment variable and name that, as in "
                f'headers_env = {{ "{name}" = "MY_KEY" }}'
            )
        if not text.isprintable() or not text.isascii():
            raise ValueError(f"the value of the header {name} has characters other than printable ASCII")


def secrets_of(values: Sequence[str]) -> tuple[str, ...]:
    """Return the secrets in values of headers: without a scheme such as `Bearer` before them."""
    return tuple([value.rpartition(" ")[2] for value in values])


def _parts(value: Any) -> Iterator[Any]:
    """Yield all values in JSON-able data."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
