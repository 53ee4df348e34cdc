"""Settings of the stages `scores` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import Operational, Section


class ScoresOptions(Section):
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


class ScoresSettings(Section):
    """All that an instance of the stage reads."""

    tokenizer: Operational[Path | None] = None
    """Folder of the evaluated model's tokenizer; it counts the tokens of rollouts that have no ids."""
    tokenizer_digest: str = ""
    """Digest that the tokenizer must have; empty means that any will do."""
    options: ScoresOptions = ScoresOptions()
    """How predictions are judged."""


class ReportSettings(Section):
    """How scores are summed up."""

    title: str = "Results"
    """Heading of the report."""

    headline: tuple[str, ...] = ()
    """Data sets that the averages are over; empty: those that the registry of benchmarks marks, and all where there
    are none of these."""

    areas: dict[str, Literal["math", "knowledge"]] = {}
    """Data set -> which average it counts in; for others the registry of benchmarks says it, else their questions."""

    bootstrap_samples: Annotated[int, Field(ge=100, le=100_000)] = 1_000
    """Resamples of questions for intervals."""

    seed: int = 0
    """Seed of the resampling."""
