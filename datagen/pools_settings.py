"""Settings of the stage `pools`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from treadle.agent.config import EnvironmentSettings
from treadle.agent.protocol import TOOL_PROTOCOL
from treadle.agent.role_settings import JudgeSampling, RoleSettings
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import Operational, Section
from treadle.core.llm.config import Sampling
from treadle.core.shards import MAX_SHARDS

DEFAULT_OPERATORS = ("rerollout", "redundant_mod", "global_refine", "self_correct", "hint_step", "hint_tail")

SEARCH_HINTS = (
    "Wait, I am not sure that I have looked closely enough; I will search once more with another query.",
    "Hold on, something here may be wrong. Let me think again and look it up with a new search.",
    "Hmm, that does not convince me yet. I had better search for what is still missing.",
    "Wait a moment, I may have missed a step. Another search should tell.",
    "Let me stop and rethink: which fact do I still need? I will issue a new query for it.",
    "Actually, I should check this against a source before I answer, so I search again.",
)
PYTHON_HINTS = (
    "Wait, I am not sure about this; let me go through it again and check it with Python.",
    "Hold on, there may be a slip in my reasoning. I will compute it with the Python tool.",
    "Hmm, that result looks doubtful. Let me rethink it and run a short program.",
    "Wait a moment, I should verify this number by running code.",
    "Let me stop and rethink the problem, and then let Python do the arithmetic.",
    "Actually, before I answer I had better confirm this with a Python program.",
)


class PolicySampling(Sampling):
    """How the policy's turns are sampled."""

    repetition_penalty: float = Field(default=1.1, gt=0.0)
    """Divides the scores of tokens that already occur in prompt or answer; 1 means none."""


class PolicyRole(Section):
    """The policy: it makes rollouts and goes on from every edit."""

    model: str | None = None
    """Its name under `models`; none means the first of the flow's models."""
    sampling: PolicySampling = PolicySampling()
    """How it is sampled."""


class HelperRole(Section):
    """A model that edits."""

    model: str | None = None
    """Its name under `models`; none means the policy's."""
    sampling: PolicySampling = PolicySampling()
    """How it is sampled."""


class JudgeRole(Section):
    """The model that decides where rules cannot."""

    model: str | None = None
    """Its name under `models`; none means the critic's."""
    sampling: JudgeSampling = JudgeSampling()
    """How it is sampled."""


class PoolRoles(Section):
    """Which models play which roles; all four may be one."""

    policy: PolicyRole = PolicyRole()
    """Initial rollouts, re-rollouts, and every continuation after an edit."""
    critic: HelperRole = HelperRole()
    """Finds redundancy, locates flaws, rewrites the thoughts of a whole trajectory."""
    refiner: HelperRole = HelperRole()
    """Analyses a flaw, writes the step that replaces it, reflects on a trajectory."""
    judge: JudgeRole = JudgeRole()
    """Decides on answers to math questions that rules leave open."""


class PoolHints(Section):
    """Sentences that make a model think again, put into its open thought; one is drawn by the seed."""

    math: tuple[str, ...] = Field(default=PYTHON_HINTS, min_length=1)
    """For math questions."""
    qa: tuple[str, ...] = Field(default=SEARCH_HINTS, min_length=1)
    """For qa questions."""
    choice: tuple[str, ...] = Field(default=SEARCH_HINTS, min_length=1)
    """For multiple choice."""

    @field_validator("math", "qa", "choice")
    @classmethod
    def _check(cls, hints: tuple[str, ...]) -> tuple[str, ...]:
        for hint in hints:
            marker = TOOL_PROTOCOL.markers.search(hint)
            if marker is not None:
                raise ValueError(f"the hint {hint!r} holds the marker {marker[0]}; a hint is words within a thought")
            if not hint.strip():
                raise ValueError("a hint is empty; give it words, or leave it out")
        return hints


class PoolOptions(Section):
    """How pools of diverse trajectories are made from questions (arXiv 2601.06860)."""

    roles: PoolRoles = PoolRoles()
    """Which models do what."""
    operators: tuple[str, ...] = DEFAULT_OPERATORS
    """What is applied to the trajectory that is taken up, each on its branch: shipped names, entry points of the group
    `treadle.operators`, or `module:Class`. Their order is that of the rows."""
    initial_rollouts: int = Field(default=1, ge=1)
    """Rollouts of each question to begin with."""
    rounds: int = Field(default=3, ge=0)
    """R: most rounds."""
    selection: Literal["best_unexpanded", "all"] = "best_unexpanded"
    """What a round takes up: the best trajectory that was not taken up yet, or all that were not."""
    near_duplicate: float = Field(default=1.0, gt=0.0, le=1.0)
    """A new trajectory whose similarity to one of the pool (Jaccard, 5 characters) is at least this is dropped; 1 drops
    exact repetitions only, white space apart."""
    enough_correct: int | None = Field(default=None, ge=1)
    """A pool with so many right trajectories is finished; none means that all rounds are made."""
    hints: PoolHints = PoolHints()
    """What makes a model think again."""
    prompts: Operational[Path | None] = None
    """Folder whose files replace the prompts of the same names; their texts count, not the path."""
    judge_math: bool = True
    """Whether the judge decides on math answers that rules find unequal; without it they are wrong."""
    f1_threshold: float = Field(default=DEFAULT_F1_THRESHOLD, ge=0.0, lt=1.0)
    """A qa answer is right if its token F1 is greater than this, or if it matches exactly."""
    max_questions: int | None = Field(default=None, ge=1)
    """Most questions, the first ones in their order; none means all."""
    max_questions_per_dataset: int | None = Field(default=None, ge=1)
    """The same for each data set."""
    datasets: tuple[str, ...] = ()
    """Data sets to take; empty means all."""
    split: Literal["train", "heldout"] | None = "train"
    """Part of the questions to take; none means both."""
    question_time_s: float = Field(default=1200.0, gt=0)
    """Wall time of one question with all its rounds; then its pool is what is finished."""
    max_error_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Largest share of failed questions with which the stage may end, where failures are accepted at all."""
    max_concurrent: Operational[int] = Field(default=32, ge=1)
    """Questions in progress at once."""
    owed_retries: Operational[int] = Field(default=2, ge=0)
    """Further passes over questions that infrastructure kept from finishing."""
    owed_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Pause before the first such pass; doubled for each further one."""
    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Most prompt and sampled tokens of all roles; passing it stops the run, which can be resumed with more."""
    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Most money for this stage, in the currency of the models' prices; passing it stops the run likewise."""
    shards: Operational[int] = Field(default=1, ge=1, le=MAX_SHARDS)
    """Parts into which the work is divided when it begins, so that several processes can share it (`treadle work`)."""


class PoolsSettings(Section):
    """All that an instance of the stage reads."""

    roles: dict[str, RoleSettings]
    """policy, critic, refiner, judge, and summarizer where the environment has one."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """What the agent works with."""
    options: PoolOptions = PoolOptions()
    """How the pools are made."""
    prompt_digests: dict[str, str] = {}
    """Prompt -> digest of its texts."""
    operator_versions: dict[str, int] = {}
    """Operator -> version."""
    judge_digest: str = ""
    """Rules, prompts and thresholds of the judge."""
    seed: int = 0
    """The run's seed; every other one derives from it."""
