"""Define the settings of the stage `sft_rows`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from treadle.core.config import Operational, Section
from treadle.datagen.texts.settings import FilterOptions, TextSource
from treadle.environments.mixture import MixedSettings


class SftRowsOptions(Section):
    """Options that decide which trajectories become fine-tuning rows, and how."""

    trajectories: Literal["pools", "rollouts", "conversion", "texts"] | None = None
    """Trajectories that rows are made from: those of `pools`, `rollouts` of the policy (`pools.roles.policy.model`;
    default: the first model) that `scores` finds right, those that `conversion` has rewritten, or `texts`. None means
    `conversion` if the flow has it, then `texts` if there are any, then `pools`, or `rollouts` if the tasks of an
    environment have no gold answers."""
    texts: tuple[TextSource, ...] = ()
    """Files of whole trajectories as text."""
    with_conversion_sources: bool = False
    """Whether the sequential source of each rewrite that `conversion` accepted becomes a row too, with its own prompt:
    the model then learns both ways."""
    filters: FilterOptions = FilterOptions()
    """Further rules that choose among right trajectories."""
    tokenizer: Operational[Path | None] = None
    """Folder with the tokenizer and chat template of the model that the rows train, or `embedded`: trajectories without
    token ids, or with those of another tokenizer, are encoded with it. None means the tokenizer of the policy. Results
    depend on its digest, not its path."""
    cutoff_tokens: int = Field(default=10_000, ge=1)
    """Maximum length of a row in tokens, prompt included; a longer trajectory is rejected."""
    texts_over_cutoff: Literal["cut", "reject"] = "cut"
    """What happens to a longer row from `texts` or `conversion`: it is cut, without an end of turn, or rejected."""
    mask_results: bool = True
    """Whether tool results are excluded from the loss; the prompt always is."""
    repair: bool = False
    """Whether to add missing thought markers and delete empty thoughts before the rules are applied."""
    near_duplicate: float = Field(default=1.0, gt=0.0, le=1.0)
    """Similarity (Jaccard, 5 characters) at which the later of two trajectories of a question is dropped; 1 drops
    only trajectories that are equal except for whitespace."""
    max_per_question: int | None = Field(default=None, ge=1)
    """Maximum number of rows per question, spread over operators and numbers of calls; None means all."""
    max_rows: int | None = Field(default=None, ge=1)
    """Maximum number of rows, spread over data sets, operators and numbers of calls; None means all."""


class SftRowsSettings(MixedSettings):
    """All settings that an instance of the stage reads."""

    tokenizer: Operational[Path | None] = None
    """Folder of the tokenizer and chat template of the rows, or `embedded`: that of `options.tokenizer`, else of the
    policy. Without it, rows have no token ids."""
    tokenizer_digest: str = ""
    """Required digest of the tokenizer; empty accepts any."""
    context_tokens: int | None = None
    """Most tokens that the model of `options.tokenizer` reads; None if its files do not say."""
    options: SftRowsOptions = SftRowsOptions()
    """Selection and encoding of the rows."""
    seed: int = 0
    """Seed of the run; it decides the random selection and the order of the rows."""
