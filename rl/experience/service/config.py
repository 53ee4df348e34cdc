"""Define the configuration of the experience service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from treadle.core.config import Section
from treadle.core.llm.config import ModelSettings
from treadle.retriever.service.config import ListenSettings
from treadle.rl.experience.settings import ExperienceOptions


class ExperienceServiceSettings(ListenSettings):
    """Address, files and limits of the experience service."""

    port: int = Field(default=8001, ge=0, le=65_535)
    """Port to listen on; 0 picks a free one."""
    folder: Path = Path("experience")
    """Folder with the pools; each workspace has a folder of its own."""
    max_body_bytes: int = Field(default=20_000_000, ge=1)
    """Maximum size of a request in bytes."""
    max_top_k: int = Field(default=50, ge=1)
    """Maximum number of records per answer."""
    shutdown_s: int = Field(default=30, ge=0)
    """Seconds that requests in flight are given when the service is stopped."""


class ExperienceServiceConfig(Section):
    """Configuration of `treadle experience serve`."""

    service: ExperienceServiceSettings = ExperienceServiceSettings()
    """Address and limits."""
    experience: ExperienceOptions = ExperienceOptions()
    """Models that write and check experience, and rules of the pool; `workspace` is that of requests without one."""
    models: dict[str, ModelSettings] = {}
    """Models by name, with their endpoints."""
    seed: int = 0
    """Seed that the seeds of all requests to models derive from."""
