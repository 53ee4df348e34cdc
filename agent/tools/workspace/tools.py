"""Turn calls of the shell and of the tools for files into commands in a workspace, and their results into texts.

Files are read and written by commands, too: paths of the model are then resolved inside the workspace's confinement.
"""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from treadle.agent.tools.outcome import OutcomeStatus
from treadle.agent.tools.python import clean
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.workspace.backend import FOLDER, CommandResult, Ending

ToolName = Literal["shell", "read_file", "write_file", "edit_file", "list_files"]

MAX_COMMAND_BYTES = 100_000
MAX_PATH_BYTES = 4096
MAX_EDITED_BYTES = 512 * 1024
_MISSING, _FOLDER, _TOO_LARGE = 70, 71, 72
"""Exit codes of the commands that tools for files run."""

Run = Callable[[str, bytes], Awaitable[CommandResult]]
"""Function that runs a command with a standard input."""
Answer = tuple[OutcomeStatus, str]


def _schema(name: str, description: str, required: Mapping[str, str], **optional: Mapping[str, Any]) -> ToolSchema:
    properties: dict[str, Any] = {key: {"type": "string", "description": text} for key, text in required.items()}
    properties |= optional
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolSchema(name, description, parameters)


_PATH = "Path of the file, relative to the workspace."
SCHEMAS: Mapping[ToolName, ToolSchema] = {
    "shell": _schema(
        "shell",
        f"Run a shell command in the workspace ({FOLDER}) and return its output and exit code. Files are kept between "
        "calls; the working directory, variables and background processes are not.",
        {"command": "The command."},
    ),
    "read_file": _schema(
        "read_file",
        "Return the text of a file in the workspace, or some of its lines.",
        {"path": _PATH},
        start_line={"type": "integer", "minimum": 1, "description": "First line, from 1."},
        end_line={"type": "integer", "minimum": 1, "description": "Last line."},
    ),
    "write_file": _schema(
        "write_file",
        "Write a file in the workspace; it and its folders are made if they are missing, and an old text is replaced.",
        {"path": _PATH, "content": "The whole text."},
    ),
    "edit_file": _schema(
        "edit_file",
        "Replace a text in a file of the workspace by another. The old text must match exactly, white space included, "
        "and occur once.",
        {"path": _PATH, "old_text": "The text to replace.", "new_text": "The text to put in its place."},
        replace_all={"type": "boolean", "description": "Replace every occurrence."},
    ),
    "list_files": _schema(
        "list_files",
        "List all files and folders in the workspace, or below one of its folders, without the content of .git.",
        {},
        path={"type": "string", "description": "Folder, relative to the workspace."},
    ),
}

_ENDINGS: Mapping[Ending, tuple[OutcomeStatus, str]] = {
    "timeout": ("timeout", "the time limit was reached"),
    "output": ("error", "it printed too much"),
    "memory": ("error", "its processes held too much memory"),
    "files": ("error", "the workspace or /tmp holds too many files or folders"),
    "folder": ("error", "the workspace is larger than its limit; delete files"),
}


async def answer(name: str, arguments: Mapping[str, Any], run: Run) -> Answer:
    """Run one call; `arguments` fit the schema. Return status and text."""
    if any("\0" in value for value in arguments.values() if isinstance(value, str)):
        return "invalid", "invalid arguments: a text has a NUL character"
    if sum(len(value.encode("utf-8", "replace")) for value in _words(name, arguments)) > MAX_COMMAND_BYTES:
        return "invalid", f"invalid arguments: longer than {MAX_COMMAND_BYTES} bytes"
    if len(str(arguments.get("path", "")).encode("utf-8", "replace")) > MAX_PATH_BYTES:
        return "invalid", f"invalid arguments: the path is longer than {MAX_PATH_BYTES} bytes"
    return await _TOOLS[name](arguments, run)


def _words(name: str, arguments: Mapping[str, Any]) -> list[str]:
    return [str(arguments.get(key, "")) for key in ("command", "path")]


async def _shell(arguments: Mapping[str, Any], run: Run) -> Answer:
    result = await run(arguments["command"], b"")
    if result.ending != "exited":
        return _killed(result)
    text = f"{clean(result.output)}\n[exit code {result.exit_code}]".lstrip("\n")
    return ("ok" if result.exit_code == 0 else "error"), text


async def _read(arguments: Mapping[str, Any], run: Run) -> Answer:
    path, first, last = arguments["path"], arguments.get("start_line", 1), arguments.get("end_line")
    if last is not None and last < first:
        return "invalid", f"invalid arguments: end_line {last} is before start_line {first}"
    # The whole file is read with `cat`, a part of it with `sed`.
    read = "cat" if (first, last) == (1, None) else f"sed -n '{first},{last or '$'}p'"
    result = await run(f"{_guard(path)} {read} < {_quoted(path)}", b"")
    if result.ending == "exited" and result.exit_code == 0:
        text = result.output.replace("\r\n", "\n").replace("\0", "").rstrip("\n")
        return ("ok", text) if text else ("empty", "[empty]")
    return _failed(result, path)


async def _write(arguments: Mapping[str, Any], run: Run) -> Answer:
    path, content = arguments["path"], arguments["content"]
    result = await run(_writing(path), content.encode("utf-8", "replace"))
    if result.ending == "exited" and result.exit_code == 0:
        return "ok", f"wrote {len(content)} characters to {path}"
    return _failed(result, path)


def _writing(path: str) -> str:
    quoted = _quoted(path)
    return f'if [ -d {quoted} ]; then exit {_FOLDER}; fi; mkdir -p -- "$(dirname -- {quoted})" && cat > {quoted}'


async def _edit(arguments: Mapping[str, Any], run: Run) -> Answer:
    path, old, new = arguments["path"], arguments["old_text"], arguments["new_text"]
    if not old:
        return "invalid", "invalid arguments: old_text is empty; use write_file to make a file"
    quoted = _quoted(path)
    size = f"if [ $(wc -c < {quoted}) -gt {MAX_EDITED_BYTES} ]; then exit {_TOO_LARGE}; fi;"
    read = await run(f"{_guard(path)} {size} base64 < {quoted}", b"")
    if read.ending != "exited" or read.exit_code != 0:
        return _failed(read, path)
    try:
        text = base64.b64decode("".join(read.output.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return "error", f"{path} is no UTF-8 text; edit it with the shell"
    number = text.count(old)
    if number == 0:
        return "error", f"old_text is not in {path}; read the file and copy the text exactly"
    if number > 1 and not arguments.get("replace_all"):
        return "error", f"old_text occurs {number} times in {path}; add lines around it, or set replace_all"
    result = await run(_writing(path), text.replace(old, new).encode("utf-8", "replace"))
    if result.ending == "exited" and result.exit_code == 0:
        return "ok", f"replaced {number} occurrence{'s' if number > 1 else ''} in {path}"
    return _failed(result, path)


async def _list(arguments: Mapping[str, Any], run: Run) -> Answer:
    path = arguments.get("path") or "."
    quoted = _quoted(path)
    listing = (
        "{ find . ! -name . -type d -exec printf '%s/\\n' {} \\; ; find . ! -type d -print; }"
        " | sed 's|^\\./||' | grep -v '\\(^\\|/\\)\\.git/.' | sort"
    )
    there = f"if [ ! -d {quoted} ]; then exit {_MISSING}; fi;"
    result = await run(f"{there} cd -- {quoted} && {listing}", b"")
    if result.ending != "exited" or result.exit_code not in (0, 1):
        return _failed(result, path)
    text = clean(result.output)
    return ("ok", text) if text else ("empty", "[empty]")


_TOOLS: Mapping[str, Callable[[Mapping[str, Any], Run], Awaitable[Answer]]] = {
    "shell": _shell,
    "read_file": _read,
    "write_file": _write,
    "edit_file": _edit,
    "list_files": _list,
}


def _quoted(path: str) -> str:
    """Return a path quoted for the shell, so that a path that begins with `-` is not read as an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path or ".")


def _guard(path: str) -> str:
    quoted = _quoted(path)
    return f"if [ -d {quoted} ]; then exit {_FOLDER}; fi; if [ ! -e {quoted} ]; then exit {_MISSING}; fi;"


def _failed(result: CommandResult, path: str) -> Answer:
    """Return the answer for a failed command of a file tool."""
    if result.ending != "exited":
        return _killed(result)
    known = {
        _MISSING: f"there is no {path}",
        _FOLDER: f"{path} is a folder",
        _TOO_LARGE: f"{path} is larger than {MAX_EDITED_BYTES} bytes; edit it with the shell",
    }
    return "error", known.get(result.exit_code or 0) or clean(result.output) or f"{path} cannot be used"


def _killed(result: CommandResult) -> Answer:
    status, reason = _ENDINGS[result.ending]
    return status, f"{clean(result.output)}\n[killed: {reason}]".lstrip("\n")
