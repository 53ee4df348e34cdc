"""Read JSON that other programs wrote: answers of servers, model configurations, files of users.

Many programs write what the standard does not allow: NaN and infinities (Python, numpy, pandas), unpaired surrogates
(JavaScript), numbers of thousands of digits, a byte order mark. `orjson` rejects the whole text for one such value,
even if nothing reads it. This module accepts the text and keeps such values, so a malformed field matters only if it is
needed, and its reader checks it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_BOM = b"\xef\xbb\xbf"
_MAX_64_BIT_CHARS = 20
_MAX_DIGITS = 4000
"""Maximum number of digits; Python does not parse an integer of more than 4,300."""
# An escape in a JSON text; group 1 is an unpaired surrogate.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def load_json(data: bytes, *, keep_surrogates: bool = False) -> Any:
    """Return the value of a JSON text; NaN and infinities become floats.

    Unpaired surrogates and invalid UTF-8 become U+FFFD. With `keep_surrogates` both become lone surrogates, so that a
    reader can distinguish them from a U+FFFD in the text.

    As in `orjson`, integers beyond 64 bits become floats, and the last value of a repeated key wins. Raises
    orjson.JSONDecodeError, a ValueError, if the text is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        data = data.removeprefix(_BOM)
        try:
            if keep_surrogates:
                return json.loads(data.decode("utf-8", "surrogateescape"), parse_int=_number)
            text = _ESCAPE.sub(_matched_text, data).decode("utf-8", "replace")
            return json.loads(text, parse_int=_number)
        except (ValueError, RecursionError):
            raise error from None


def exact_integer(digits: str) -> int | str:
    """Return an integer, or its digits if there are too many for Python; use it as `parse_int` for files of users."""
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _number(digits: str) -> int | float:
    number = int(digits) if len(digits) <= _MAX_64_BIT_CHARS else None
    return number if number is not None and -(2**63) <= number < 2**64 else float(digits)


def _matched_text(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape[1] else escape[0]
