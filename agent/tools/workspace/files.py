"""Check the files that a task contains, whose paths are not trusted, and pack them for the workspace."""

from __future__ import annotations

import base64
import binascii
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255
MAX_PARTS = 32
DEFAULT_TESTS_S = 300.0
MAX_TESTS_S = 3600.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TIME = 946_684_800
"""Modification time of all files, 2000-01-01, so that a listing is the same when calls are repeated after a resume."""
_KEYS_OF_TESTS = ("files", "command", "timeout_s", "expected")


class BadTask(ValueError):
    """Files or tests of a task that cannot be used. The message quotes nothing of the payload."""


@dataclass(frozen=True, slots=True)
class HiddenTests:
    """Tests that run after the episode.

    Attributes:
        files: Path in the workspace -> content.
        command: Shell command that runs them in the workspace.
        timeout_s: Time limit of the command, in seconds.
        expected: Names of the tests that must pass, as pytest shows them; if empty, all tests must pass.
    """

    files: Mapping[str, bytes]
    command: str
    timeout_s: float = DEFAULT_TESTS_S
    expected: tuple[str, ...] = ()


def files_of(payload: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a task, path -> content, from the field `files` of its payload. Raises BadTask."""
    return _files(payload.get("files") or {}, "files")


def hidden_tests_of(payload: Mapping[str, Any]) -> HiddenTests | None:
    """Return the hidden tests in the field `tests` of a payload; None if there are none. Raises BadTask."""
    given = payload.get("tests")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise BadTask("tests is no object")
    given = _without_nulls(given)
    if any(name not in _KEYS_OF_TESTS for name in given):
        raise BadTask(f"tests has an unknown field; known: {', '.join(_KEYS_OF_TESTS)}")
    command, timeout_s, expected = given.get("command"), given.get("timeout_s", DEFAULT_TESTS_S), given.get("expected")
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise BadTask("tests.command is no text")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_TESTS_S:
        raise BadTask(f"tests.timeout_s is no number of seconds up to {MAX_TESTS_S:g}")
    if expected is not None and not (isinstance(expected, list) and expected and all(map(_is_text, expected))):
        raise BadTask("tests.expected is no list of names of tests")
    return HiddenTests(_files(given.get("files", {}), "tests.files"), command, float(timeout_s), tuple(expected or ()))


def _without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an object that are not null: in Parquet each row has the fields of all rows."""
    return {name: value for name, value in given.items() if value is not None}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def check_payload(payload: Mapping[str, Any]) -> None:
    """Raise BadTask if a task cannot be solved in a workspace and scored by hidden tests."""
    files_of(payload)
    if hidden_tests_of(payload) is None:
        raise BadTask("it has no field tests")


def _files(given: Any, field: str) -> dict[str, bytes]:
    if not isinstance(given, Mapping):
        raise BadTask(f"{field} is no object with a content for each path")
    found: dict[str, bytes] = {}
    for number, (path, content) in enumerate(_without_nulls(given).items(), 1):
        if problem := path_problem(path):
            raise BadTask(f"path {number} of {field} {problem}")
        found[path] = _content(content, f"the content of path {number} of {field}")
    for number, path in enumerate(found, 1):
        if any(parent in found for parent in parents_of(path)):
            raise BadTask(f"path {number} of {field} needs a folder where another path is a file; rename one of them")
    return found


def path_problem(path: object) -> str:
    """Return why a path of a task's file cannot be used; empty if it can. It is relative, with `/` between names."""
    if not isinstance(path, str) or not path:
        return "is empty"
    try:
        size = len(path.encode())
        longest = max(len(part.encode()) for part in path.split("/"))
    except UnicodeEncodeError:
        return "has a lone surrogate"
    parts = path.split("/")
    if path.startswith("/"):
        return "is absolute"
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty part, . or .."
    if _CONTROL.search(path):
        return "has a control character"
    if size > MAX_PATH_BYTES or longest > MAX_NAME_BYTES or len(parts) > MAX_PARTS:
        return f"is longer than {MAX_PATH_BYTES} bytes, {MAX_NAME_BYTES} bytes of a name, or {MAX_PARTS} parts"
    return ""


def parents_of(path: str) -> list[str]:
    """Return the folders above a relative path, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _content(value: Any, what: str) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadTask(f"{what} has a lone surrogate") from None
    if isinstance(value, Mapping) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise BadTask(f"{what} is not valid base64") from None
    raise BadTask(f'{what} is neither a text nor {{"base64": "..."}}')


def packed(files: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> bytes:
    """Return files as a tar archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in dict(files).items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(content), _TIME, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()
