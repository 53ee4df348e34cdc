"""Settings of the tools of planning agents."""

from __future__ import annotations

from pydantic import Field

from treadle.agent.sandbox.config import SandboxSettings
from treadle.core.config import Section


class CodeSandboxSettings(SandboxSettings):
    """Isolation and limits of one program of the tool `code`, by default those of arXiv 2508.13167."""

    memory_mb: int = Field(default=5000, ge=64)
    """Address space of each process, and what all of them and the scratch directory may hold together, in MiB."""
    max_processes: int = Field(default=64, ge=1)
    """Processes and threads alive at once in one sandbox."""
    cpu_s: int | None = Field(default=5, ge=1)
    """CPU seconds of each process; unset: the wall-clock limit of the call, plus one."""


class CodeSettings(Section):
    """Settings of the tool `code`, which runs Python programs."""

    enabled: bool = True
    """Enables the tool, for dialects that have it."""
    max_calls: int = Field(default=12, ge=0)
    """Most executed calls per rollout; 0 disables the tool."""
    time_limit_s: float = Field(default=7.0, gt=0)
    """Wall time limit of one program, in seconds."""
    max_output_chars: int | None = Field(default=1536, ge=256)
    """Longest observation in characters. A longer one keeps its first and its last half; none means no limit."""
    sandbox: CodeSandboxSettings = CodeSandboxSettings()
    """How programs are isolated."""
