"""Penalise responses that come close to the maximum length (DAPO, arXiv 2503.14476, "soft overlong punishment")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Overlong = Literal["none", "buffer"]

BUFFER_SHARE = 8
"""Maximum length divided by the length of the buffer, the range at its end in which responses are penalised."""

OVERLONG_PARTS: Mapping[Overlong, Mapping[str, str]] = {
    "none": {},
    "buffer": {"overlong": "0, or minus the share of the buffer at the end of the length that the response fills"},
}
"""Value of `rl.overlong` -> name and description of each part that it adds to every reward."""


def overlong_penalty(length: int, limit: int) -> float:
    """Return 0 up to 7/8 of `limit`, and -1 at `limit`; in between it falls linearly. Both are in tokens."""
    buffer = limit / BUFFER_SHARE
    return -min(1.0, max(0.0, (length - (limit - buffer)) / buffer))
