"""Settings of the stages `scores` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from treadle.agent.role_settings import JudgeSampling, RoleSettings
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import Added, Operational, Revisable, Section
from treadle.core.llm.config import Sampling


class JudgesOptions(Section):
    """Models that decide about answers which the rules do not call right."""

    models: tuple[str, ...] = ()
    """Their names under `models`. Of several the majority counts, and the rule where they are equally strong. Empty:
    rules alone."""
    domains: tuple[Literal["math", "qa"], ...] = ("math",)
    """Questions whose answers they are asked about, by the rule that decides otherwise. Their score is 1 or 0."""
    sampling: JudgeSampling = JudgeSampling()
    """How their words are sampled."""
    on_failed: Literal["exclude", "rule"] = "exclude"
    """What becomes of an answer about which none of them said anything that can be read: `exclude` leaves it without a
    verdict, and out of every mean; `rule` keeps the rule's, which is wrong. They are counted either way."""

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(models)) < len(models):
            raise ValueError("a judge that is named twice has one opinion; name each once")
        return models


class VoteSampling(Sampling):
    """How votes are sampled."""

    temperature: float = Field(default=0.6, ge=0.0)
    """Softmax temperature; 0 makes all votes the same."""
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    """Divides the scores of tokens that already occur in prompt or answer; 1 means none."""
    max_tokens: int = Field(default=128, ge=1)
    """Most new tokens of one request."""


class RedundancyOptions(Section):
    """The model that votes on whether a trajectory has a redundant or ineffective call."""

    model: str | None = None
    """Its name under `models`; none means that nobody votes, and that the report has no conciseness."""
    votes: int = Field(default=10, ge=1, le=100)
    """Votes on each trajectory with a call; more than half of them decide."""
    sampling: VoteSampling = VoteSampling()
    """How they are sampled."""


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

    judges: Added[Revisable[JudgesOptions]] = JudgesOptions()
    """Models that decide where rules do not say right."""

    redundancy: Added[Revisable[RedundancyOptions]] = RedundancyOptions()
    """The model that votes on wasted calls."""

    max_error_rate: Revisable[Annotated[float, Field(ge=0, le=1)]] = 0.01
    """Share of rollouts that may stay without a verdict because the scorer or all judges failed; above it the stage
    fails. And share of judgements that may be missing where their failure is accepted."""

    max_concurrent: Operational[int] = Field(default=64, ge=1)
    """Judgements in progress at once."""

    judgement_time_s: Operational[float] = Field(default=600.0, gt=0.0)
    """Wall time of one judgement; passing it leaves the judgement owed."""

    owed_retries: Operational[int] = Field(default=2, ge=0)
    """Further passes over judgements that infrastructure kept from being made."""

    owed_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Pause before the first such pass; doubled for each further one."""

    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Most prompt and sampled tokens of all judges; passing it stops the run, which can be resumed with more."""

    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Most money for this stage, in the currency of the models' prices; passing it stops the run likewise."""


class ScoresSettings(Section):
    """All that an instance of the stage reads."""

    tokenizer: Operational[Path | None] = None
    """Folder of the evaluated model's tokenizer; it counts the tokens of rollouts that have no ids."""
    tokenizer_digest: str = ""
    """Digest that the tokenizer must have; empty means that any will do."""
    options: ScoresOptions = ScoresOptions()
    """How predictions are judged."""
    judges: dict[str, RoleSettings] = {}
    """The models of `options.judges`, by name."""
    redundancy: RoleSettings | None = None
    """The model of `options.redundancy`."""
    judge_digests: tuple[str, ...] = ()
    """Prompts and views of the judges that are asked."""
    seed: int = 0
    """The run's seed, where judges are asked; every judgement's derives from it."""


class ReportSettings(Section):
    """How scores are summed up."""

    title: str = "Results"
    """Heading of the report."""

    headline: Added[tuple[str, ...]] = ()
    """Data sets that the averages are over; empty: those that the registry of benchmarks marks, and all where there
    are none of these."""

    areas: Added[dict[str, Literal["math", "knowledge"]]] = {}
    """Data set -> which average it counts in; for others the registry of benchmarks says it, else their questions."""

    bootstrap_samples: Annotated[int, Field(ge=100, le=100_000)] = 1_000
    """Resamples of questions for intervals."""

    seed: int = 0
    """Seed of the resampling."""
