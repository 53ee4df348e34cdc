"""Settings of the tools of planning agents."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from treadle.agent.pages.settings import CrawlSettings
from treadle.agent.sandbox.config import SandboxSettings
from treadle.core.config import Operational, Section
from treadle.core.llm.config import Sampling
from treadle.environments.settings import EnvironmentRole
from treadle.web.config import FetchSettings

VISION = "vision"
"""Role of the model that describes pictures."""


class PlanningCrawlSettings(CrawlSettings):
    """Settings of the tool `crawl_page`; pages are fetched with the settings of `search.web`."""

    enabled: bool = True
    """Enables the tool, for dialects that have it, if `search.web` is set."""
    max_calls: int = Field(default=64, ge=0)
    """Most executed calls per rollout; 0 disables the tool."""


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
    """Longest observation in characters. A longer one loses its middle; none means no limit."""
    sandbox: CodeSandboxSettings = CodeSandboxSettings()
    """How programs are isolated."""


class VisionSampling(Sampling):
    """Sampling parameters of descriptions of pictures."""

    top_p: float = Field(default=0.1, gt=0.0, le=1.0)
    """Share of the probability mass to sample from; 1 means all."""
    max_tokens: int = Field(default=1000, ge=1)
    """Maximum number of new tokens per request."""


class VisionRole(EnvironmentRole):
    """Model that describes pictures."""

    model: str = "vision"
    """Name of the model under `models`; its server must take pictures over the chat route."""
    sampling: VisionSampling = VisionSampling()
    """Sampling parameters of its answers."""


class VisualInspectorSettings(Section):
    """Settings of the tool `visual_inspector`, which describes pictures."""

    enabled: bool = True
    """Enables the tool, for dialects that have it."""
    max_calls: int = Field(default=12, ge=0)
    """Most executed calls per rollout; 0 disables the tool."""
    vision: VisionRole = VisionRole()
    """Model that describes the pictures."""
    folder: Operational[Path | None] = None
    """Folder whose pictures may be named by their path, relative to it or absolute; links in it are not followed. None
    allows URLs only."""
    max_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    """Largest file of a picture, in bytes."""
    max_pixels: int = Field(default=40_000_000, ge=1)
    """Most pixels of a picture: width times height."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Time limit of fetching one picture, in seconds."""
    fetch: FetchSettings = FetchSettings()
    """Limits of fetching pictures by URL."""
