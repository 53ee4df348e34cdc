"""Determine how servers treat stop strings, and whether one is missing from an answer.

Only vLLM keeps the stop string in the text on request. Others leave it out, and some of these do not report which one
it was. The rules are in `docs/behaviour/llm.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treadle.core.llm.wire import Answer

KEPT = "kept"
"""The server ends an answer's text with the stop string."""
NAMED = "named"
"""The server ends an answer's text before the stop string, and names the string in the answer."""
DROPPED = "dropped"
"""The server ends an answer's text before the stop string, and does not name the string in the answer."""
IGNORED = "ignored"
"""The server ignores stop strings: an answer's text continues beyond one."""
UNKNOWN = "unknown"
"""The preflight could not determine how the server treats stop strings."""


def stop_within(text: str) -> str | None:
    """Return the most frequent letter or digit of a text other than its first, to stop at; None if it has none."""
    said = text.strip()
    counts = Counter(char for char in said if char.isalnum() and char != said[0])
    return max(counts, key=lambda char: (counts[char], char), default=None)


def style_of(free: str, stop: str, answer: Answer) -> str:
    """Return how a server treats stop strings, from an answer that should end at `stop`.

    `free` is the text of the same request without a stop string.
    """
    if stop in answer.text:
        at_stop = answer.text.rstrip().find(stop) + len(stop) == len(answer.text.rstrip())
        # Some servers keep the rest of the token that the stop string ends in.
        ended = answer.finish_reason == "stop" and len(answer.text) < len(free)
        return KEPT if at_stop or ended else IGNORED
    if answer.finish_reason != "stop" or answer.own_end or not free.strip().startswith(answer.text.strip()):
        return UNKNOWN
    return NAMED if answer.stop_reason == stop else DROPPED


def lacks_stop(answer: Answer, stops: Sequence[str], style: str) -> bool:
    """Return whether a stop string ended an answer, or may have, and is not in its text."""
    named = answer.stop_reason
    if named is None and (style != DROPPED or answer.own_end):
        return False
    if named is not None and answer.text.endswith(named):
        return False
    if answer.finish_reason != "stop" or any(stop in answer.text for stop in stops):
        return False
    return named in stops or (style == DROPPED and bool(stops) and not answer.own_end)
