"""Define the interface of the back ends that hold workspaces and run commands in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

FOLDER = "/workspace"
"""Path of the workspace for its commands."""
SCRATCH = "/tmp"
"""Folder for temporary files."""

Ending = Literal["exited", "timeout", "output", "memory", "files", "folder"]
"""How a command ended: by itself, or killed at its time limit or for too much output, memory, files or disk."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of one command.

    Attributes:
        ending: How it ended.
        exit_code: 128 + N after signal N; None if it was killed at a limit.
        output: Standard output and error in the order of writing; the middle of a long one is left out.
        seconds: Wall time.
    """

    ending: Ending
    exit_code: int | None
    output: str
    seconds: float = 0.0


class UnusableWorkspace(Exception):
    """Workspace that the agent left in a state in which no tests can run on it."""


class Workspace(Protocol):
    """Files of one episode, and commands on them. Commands run one at a time."""

    async def run(self, command: str, *, time_limit_s: float, stdin: bytes = b"") -> CommandResult:
        """Run a shell command in the workspace; afterwards no process that it started is left.

        Raises ToolError if it cannot be run, or if the disk of the host is full.
        """
        ...

    async def fresh(self) -> Workspace:
        """Return a workspace with the same files and more disk space, without anything else that commands left.

        Raises UnusableWorkspace if the agent made that impossible, and ToolError.
        """
        ...

    async def close(self) -> None:
        """Delete the workspace."""
        ...


class Workspaces(Protocol):
    """Back end: `async with workspaces:` around all episodes of a process."""

    async def __aenter__(self) -> Workspaces: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def open(self, seed: int) -> Workspace:
        """Return an empty workspace. What its commands can see depends only on the seed. Raises ToolError."""
        ...

    def facts(self) -> dict[str, str]:
        """Return facts for the record of the stage."""
        ...
