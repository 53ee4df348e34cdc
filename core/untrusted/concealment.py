"""Prepare errors that a user's code raises for logs, scores and the terminal: name the line, hide the payload."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from treadle.core.errors import TreadleError

_HIDDEN = "[payload]"
_MIN_CHARS = 4
_MIN_LINE_CHARS = 8
"""Shorter texts and lines are in too many messages by chance."""


class PayloadInError(Exception):
    """Error in place of another one whose traceback quotes the payload: its type, message and place, without it."""


@contextlib.contextmanager
def user_code(instance: object, payload: Mapping[str, Any]) -> Iterator[None]:
    """Run code of a user's class for the duration of the block.

    An error gets a note with the line of the class's file, or is replaced by one without the payload if it quotes it.
    SystemExit becomes an error.
    """
    try:
        with exits_as_errors():
            yield
    except Exception as error:
        if (hidden := concealed(error, payload)) is not None:
            raise hidden from None
        own = {cls.__module__ for cls in type(instance).__mro__[:-1] if not cls.__module__.startswith("treadle.")}
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            if frame.f_globals.get("__name__") in own:
                error.add_note(f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}")
                break
        raise


@contextlib.contextmanager
def exits_as_errors() -> Iterator[None]:
    """Raise RuntimeError in place of SystemExit, which code of users may raise."""
    try:
        yield
    except SystemExit as error:
        # SystemExit would end the whole command, even with exit code 0, or silently end an event loop in a thread.
        failure = RuntimeError(f"the code tried to end the process (SystemExit: {error})")
        raise failure.with_traceback(error.__traceback__) from None


def concealed(error: Exception, payload: Mapping[str, Any]) -> Exception | None:
    """Return the exception to raise instead of an error; None if the error's traceback quotes no text of the payload.

    An error of Treadle keeps its type, which decides about retries, but its text is changed too: an error of a model
    server can quote the request of a dialogue partner, and so the payload. Numbers and texts of fewer than four
    characters are not recognised.
    """
    secrets = set(_texts(payload))
    whole = "".join(traceback.format_exception(error)) if secrets else ""
    if not any(secret in whole for secret in secrets):
        return None
    message = without_payload(str(error), payload)
    if isinstance(error, TreadleError):
        return type(error)(message)
    message = f"{type(error).__name__}: {message}"
    last = traceback.extract_tb(error.__traceback__)[-1:]
    places = "".join(f" (line {frame.lineno} of {frame.filename}, in {frame.name})" for frame in last)
    return PayloadInError(message + places)


def without_payload(text: str, payload: Mapping[str, Any]) -> str:
    """Return a text with a mark in place of each text of the payload in it."""
    for secret in sorted(set(_texts(payload)), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a payload unchanged, as Python and JSON quote them, and their lines."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str) and len(value) >= _MIN_CHARS:
        yield from (value, repr(value)[1:-1], json.dumps(value)[1:-1])
        yield from (line for line in map(str.strip, value.splitlines()) if len(line) >= _MIN_LINE_CHARS)
