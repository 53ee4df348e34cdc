"""Define the settings of the stages `scores` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from treadle.agent.judges.correctness import Correctness
from treadle.agent.judges.registry import AnyJudge
from treadle.agent.role_settings import JudgeSampling, RoleSettings
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import Operational, Revisable, Section
from treadle.core.llm.config import Sampling
from treadle.environments.registry import AnyEnvironment
from treadle.environments.scorers.registry import AnyScorer
from treadle.eval.figures.prices import Amount, TokenPrices


class VoteSampling(Sampling):
    """Sampling settings of the votes."""

    temperature: float = Field(default=0.6, ge=0.0)
    """Softmax temperature; 0 makes all votes the same."""
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    """Penalty on tokens that already occur in the prompt or completion, by which their scores are divided; 1 means
    none."""
    max_tokens: int = Field(default=128, ge=1)
    """Maximum number of new tokens per request."""


class RedundancyOptions(Section):
    """Model that votes on whether a trajectory contains a redundant or ineffective tool call."""

    model: str | None = None
    """Name of the model under `models`. If unset, there are no votes and the report has no conciseness."""
    votes: int = Field(default=10, ge=1, le=100)
    """Number of votes per trajectory with tool calls. More than half of them decide."""
    sampling: VoteSampling = VoteSampling()
    """Sampling settings of the votes."""


class BestOfOptions(Section):
    """Model that picks the best of several attempts at a question. It never sees gold answers."""

    model: str | None = None
    """Name of the model under `models`. If unset, no attempt is picked and the report has no `best_of@k`."""
    attempts: int = Field(default=3, ge=2, le=16)
    """Number of attempts at a question that are compared: its first ones. Questions with fewer are left out."""
    sampling: JudgeSampling = JudgeSampling()
    """Sampling settings of the choices."""


class ScoresOptions(Section):
    """Scoring options of predictions."""

    f1_threshold: Annotated[float, Field(ge=0, lt=1)] = DEFAULT_F1_THRESHOLD
    """A qa answer is right if its token F1 exceeds this value, or if it matches exactly."""

    symbolic: bool = True
    """Whether to use computer algebra for comparisons that the cheaper layers of math equality leave undecided."""

    symbolic_limit_s: Annotated[float, Field(gt=0, le=600)] = 2.0
    """CPU seconds per symbolic comparison. If exceeded, the answers count as not equal."""

    symbolic_memory_mib: Annotated[int, Field(ge=256)] = 1024
    """Address space limit of a symbolic worker process, in MiB."""

    symbolic_workers: Operational[Annotated[int, Field(ge=1, le=64)]] = 1
    """Number of worker processes for symbolic comparison."""

    judges: Revisable[AnyJudge] = Correctness()
    """Judge models for answers that the rules do not accept, or for trajectories."""

    redundancy: Revisable[RedundancyOptions] = RedundancyOptions()
    """Model that votes on redundant tool calls."""

    best_of: Revisable[BestOfOptions] = BestOfOptions()
    """Model that picks the best of several attempts."""

    max_error_rate: Revisable[Annotated[float, Field(ge=0, le=1)]] = 0.01
    """Maximum share of rollouts without a verdict because the scorer or all judges failed; above it, the stage fails.
    Also the maximum share of judgements that may be missing if failures are accepted."""

    max_concurrent: Operational[int] = Field(default=64, ge=1)
    """Maximum number of judgements in progress at once."""

    judgement_time_s: Operational[float] = Field(default=600.0, gt=0.0)
    """Wall-clock limit of one judgement in seconds. A judgement that exceeds it stays pending."""

    pending_retries: Operational[int] = Field(default=2, ge=0)
    """Number of further passes over judgements that failed because of infrastructure."""

    pending_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Seconds to wait before the first such pass; doubles before each further one."""

    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Token budget of all judges, prompt and completion together. Exceeding it stops the run, which can be resumed with
    a larger budget."""

    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Cost budget of this stage, in the currency of the models' prices. Exceeding it stops the run, which can be
    resumed with a larger budget."""


class ScoresSettings(Section):
    """Settings that an instance of the stage `scores` reads."""

    tokenizer: Operational[Path | None] = None
    """Folder of the evaluated model's tokenizer. It counts the tokens of rollouts without token ids."""
    tokenizer_digest: str = ""
    """Digest that the tokenizer must have; empty accepts any tokenizer."""
    options: ScoresOptions = ScoresOptions()
    """Scoring options of predictions."""
    judges: dict[str, RoleSettings] = {}
    """Models of `options.judges`, by name."""
    redundancy: RoleSettings | None = None
    """Model of `options.redundancy`."""
    environments: dict[str, AnyEnvironment] = {}
    """Environments, by name, that rate rollouts of their tasks because these have no gold answers."""
    scorers: dict[str, AnyScorer] = {}
    """Scorers of users that the questions name."""
    judge_digests: tuple[str, ...] = ()
    """Digests of the prompts and views of the judges in use."""
    best_of: RoleSettings | None = None
    """Model of `options.best_of`."""
    best_of_digest: str = ""
    """Digest of the prompts and views of the choices."""
    seed: int = 0
    """The run's seed if any of these models is configured, else 0. The seed of each judgement derives from it."""


class ReportSettings(Section):
    """Settings of the stage `report`."""

    title: str = "Results"
    """Heading of the report."""

    headline: tuple[str, ...] = ()
    """Data sets that the averages cover. If empty: those that the benchmark registry marks as headline, or all data
    sets if no evaluated one is marked."""

    areas: dict[str, Literal["math", "knowledge"]] = {}
    """Data set -> the average that it counts in. For other data sets the benchmark registry decides, or else the
    domains of their questions."""

    group_by: tuple[str, ...] = (
        "Level", "level", "difficulty", "topic", "problem_topic", "category", "subject", "language", "lang", "type",
        "answer_type", "platform", "info.Level", "info.difficulty_level", "info.domain", "info.type", "info.lang",
        "extra_info.level", "extra_info.difficulty", "extra_info.subject", "extra_info.platform",
    )  # fmt: skip
    """Columns of questions by whose values data sets are split: fields of rows, with dots into objects. A column counts
    where it has 2 to 30 values."""

    prices: dict[str, TokenPrices] = {}
    """Prices of the tokens of models by name, for the figures `cost` and `cost_of_pass`, instead of those under
    `models`. Models without prices have no costs."""

    model_prices: Operational[dict[str, TokenPrices]] = {}
    """Prices under `models`; filled in when the run starts. A report that was made before they changed keeps its
    costs."""

    tool_fees: dict[str, Amount] = {}
    """Fee of one executed call, by tool, in the same currency."""

    bootstrap_samples: Annotated[int, Field(ge=100, le=100_000)] = 1_000
    """Number of bootstrap resamples of questions for intervals."""

    seed: int = 0
    """Seed of the resampling."""
