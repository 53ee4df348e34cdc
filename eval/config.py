"""Settings of the stages `scores` and `report`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import Operational, Section


class ScoresSettings(Section):
    """How predictions are judged."""

    f1_threshold: Annotated[float, Field(ge=0, lt=1)] = DEFAULT_F1_THRESHOLD
    """A qa answer is right if its token F1 is greater than this, or if it matches exactly."""

    symbolic: bool = True
    """Whether computer algebra decides what the cheaper layers of math equality leave open."""

    symbolic_limit_s: Annotated[float, Field(gt=0, le=600)] = 2.0
    """CPU seconds for one symbolic comparison; beyond it the answers count as not equal."""

    symbolic_memory_mib: Annotated[int, Field(ge=256)] = 1024
    """Address space of a symbolic worker process in MiB."""

    symbolic_workers: Operational[Annotated[int, Field(ge=1, le=64)]] = 1
    """Worker processes for symbolic comparison."""

    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rollouts that may stay without a verdict because the scorer failed; above it the stage fails."""


class ReportSettings(Section):
    """How scores are summed up."""

    title: str = "Results"
    """Heading of the report."""

    bootstrap_samples: Annotated[int, Field(ge=100, le=100_000)] = 1_000
    """Resamples of questions for the interval of F1."""

    seed: int = 0
    """Seed of the resampling."""
