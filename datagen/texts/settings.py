"""Define where trajectories in whole texts come from, and the rules that choose among trajectories."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from treadle.core.config import Operational, Section
from treadle.core.untrusted.input_files import FileFormat
from treadle.environments.planning.dialect import DialectName


class TextSource(Section):
    """One file of trajectories, each of them one text with its observations, as Agent Foundation Models publishes
    them: a JSON list of {instruction, input, output}."""

    path: Operational[Path]
    """A .json, .jsonl, .csv or .parquet file."""
    format: FileFormat | None = None
    """Format of the file, if its suffix does not show it."""
    dataset: str = ""
    """Name of the data set; default: the file's name without suffix."""
    domain: str = "qa"
    """Domain of its rows: math, qa, choice or another name."""
    instruction_field: str = "instruction"
    """Field with the prompt that precedes the question; rows may lack it."""
    question_field: str = "input"
    """Field with the question."""
    text_field: str = "output"
    """Field with the whole trajectory."""
    question_label: str = "Question: "
    """Text between prompt and question, unless the question begins with it; `Task: ` for math and code."""
    tag: str = Field(default="observation", pattern=r"^[A-Za-z_]\w{0,39}$")
    """Tag around results: their tokens, and those of the tag itself, have no loss."""
    dialect: DialectName | None = None
    """Dialect of the texts, for `filters.drop_violations`."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of rows to read, from the start."""
    sha256: str | None = None
    """Digest of the file's content; filled in when the run starts, so that an edited file is read again."""

    @property
    def dataset_name(self) -> str:
        """Name of the data set as configured, else from the file name."""
        return self.dataset or self.path.stem


class FilterOptions(Section):
    """Rules that choose among right trajectories, after arXiv 2508.13167 and 2510.25320; by default none applies.
    `drop_violations` concerns whole texts alone: the quality gate always rejects trajectories of pools and rollouts
    that break the order of blocks. Tokens are counted only with a tokenizer."""

    min_interactions: int = Field(default=0, ge=0)
    """Minimum number of blocks besides thoughts, results and the answer (plans, calls, reflections, checks); the paper
    drops trajectories with fewer than 5."""
    min_searches: int = Field(default=0, ge=0)
    """Minimum number of queries; GAP drops trajectories with fewer than 3."""
    max_text_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens after the prompt; GAP drops longer ones than about 2,000."""
    drop_repeated_calls: bool = False
    """Whether to drop trajectories with a call that repeats an earlier one, apart from case and white space."""
    drop_violations: bool = False
    """Whether to drop trajectories that break the order of blocks of their dialect, even if the answer is right."""
    unreflected_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the trajectories without a reflection or check that is kept; 0 drops all, as the paper does for math
    and code."""
    corrected_copies: int = Field(default=1, ge=1, le=16)
    """Number of rows of a trajectory whose first `double_check` was 1 or 2 and whose answer is right."""
    parallel_share: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Share of parallel trajectories: those with several queries in one batch; GAP keeps 0.6. If parallel or sequential
    trajectories exceed their share, as many of them as needed are left out; if there are only trajectories of one kind,
    all are kept. None keeps all."""
