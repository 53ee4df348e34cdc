"""Settings of the stage `sft_rows`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from treadle.agent.config import EnvironmentSettings
from treadle.core.config import Operational, Section


class SftRowsOptions(Section):
    """Which trajectories become fine-tuning rows, and how."""

    cutoff_tokens: int = Field(default=10_000, ge=1)
    """Longest row in tokens, prompt included; a longer trajectory is rejected, never cut."""
    mask_results: bool = True
    """Whether results of tools are left out of the loss; the prompt always is."""
    repair: bool = False
    """Whether missing markers of thoughts are added and empty thoughts deleted before the rules are applied."""
    near_duplicate: float = Field(default=1.0, gt=0.0, le=1.0)
    """Of two trajectories of a question that are at least this similar (Jaccard, 5 characters) the earlier is kept; 1
    drops exact repetitions only, white space apart."""
    max_per_question: int | None = Field(default=None, ge=1)
    """Most rows of one question, spread over operators and numbers of calls."""
    max_rows: int | None = Field(default=None, ge=1)
    """Most rows, spread over data sets, operators and numbers of calls; none means all."""


class SftRowsSettings(Section):
    """All that an instance of the stage reads."""

    environment: EnvironmentSettings = EnvironmentSettings()
    """What the trajectories were made in; its prompt becomes that of the rows."""
    tokenizer: Operational[Path | None] = None
    """Folder of the policy's tokenizer and chat template, or `embedded`; needed where trajectories have token ids."""
    tokenizer_digest: str = ""
    """Digest that the tokenizer must have; empty means that any will do."""
    options: SftRowsOptions = SftRowsOptions()
    """Which trajectories, and how."""
    seed: int = 0
    """The run's seed; it decides what is drawn, and the order of the rows."""
