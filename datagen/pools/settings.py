"""Define the settings of the stage `pools`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.role_settings import JudgeSampling, RoleSettings
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import Operational, Section
from treadle.core.llm.config import Sampling
from treadle.core.runs.shards import MAX_SHARDS
from treadle.environments.mixture import MixedSettings

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
    """Sampling parameters of the policy's turns."""

    repetition_penalty: float = Field(default=1.1, gt=0.0)
    """Divisor of the scores of tokens that already occur in the prompt or the completion; 1 disables it."""


class PolicyRole(Section):
    """The policy: it generates rollouts and continues after every edit."""

    model: str | None = None
    """Name of its model under `models`; None means the first of the flow's models."""
    sampling: PolicySampling = PolicySampling()
    """Sampling parameters."""


class HelperRole(Section):
    """A model that edits trajectories."""

    model: str | None = None
    """Name of its model under `models`; None means the policy's."""
    sampling: PolicySampling = PolicySampling()
    """Sampling parameters."""


class JudgeRole(Section):
    """The model that judges answers if rules cannot decide."""

    model: str | None = None
    """Name of its model under `models`; None means the critic's."""
    sampling: JudgeSampling = JudgeSampling()
    """Sampling parameters."""


class PoolRoles(Section):
    """Models of the four roles; one model may have several roles."""

    policy: PolicyRole = PolicyRole()
    """Model that generates initial rollouts, re-rollouts, and every continuation after an edit."""
    critic: HelperRole = HelperRole()
    """Model that finds redundancy, locates flaws, and rewrites the thoughts of a whole trajectory."""
    refiner: HelperRole = HelperRole()
    """Model that analyses a flaw, writes the step that replaces it, and reflects on a trajectory."""
    judge: JudgeRole = JudgeRole()
    """Model that judges answers to math questions if rules cannot decide."""


class PoolHints(Section):
    """Sentences that make a model think again, inserted into its open thought; the seed chooses one."""

    math: tuple[str, ...] = Field(default=PYTHON_HINTS, min_length=1)
    """Hints for math questions."""
    qa: tuple[str, ...] = Field(default=SEARCH_HINTS, min_length=1)
    """Hints for qa questions, and for those of other domains."""
    choice: tuple[str, ...] = Field(default=SEARCH_HINTS, min_length=1)
    """Hints for multiple-choice questions."""

    @field_validator("math", "qa", "choice")
    @classmethod
    def _check(cls, hints: tuple[str, ...]) -> tuple[str, ...]:
        for hint in hints:
            marker = TOOL_DIALECT.markers.search(hint)
            if marker is not None:
                raise ValueError(
                    f"the hint {hint!r} contains the marker {marker[0]}; a hint must be plain text within a thought"
                )
            if not hint.strip():
                raise ValueError("a hint is empty; add text or remove it")
        return hints


class PoolOptions(Section):
    """Options of how pools of diverse trajectories are made from questions (arXiv 2601.06860)."""

    roles: PoolRoles = PoolRoles()
    """Models of the roles."""
    operators: tuple[str, ...] = DEFAULT_OPERATORS
    """Operators to apply to the expanded trajectory, each on its branch: shipped names, entry points of the group
    `treadle.operators`, or `module:Class`. Rows are in the order of this list."""
    initial_rollouts: int = Field(default=1, ge=1)
    """Number of initial rollouts per question."""
    rounds: int = Field(default=3, ge=0)
    """Maximum number of rounds (R)."""
    selection: Literal["best_unexpanded", "all"] = "best_unexpanded"
    """Trajectories that a round expands: the best one that was not expanded yet, or all that were not."""
    near_duplicate: float = Field(default=1.0, gt=0.0, le=1.0)
    """Similarity (Jaccard, 5 characters) to a trajectory of the pool at which a new trajectory is dropped; 1 drops
    only trajectories that are equal except for whitespace."""
    enough_correct: int | None = Field(default=None, ge=1)
    """Number of right trajectories at which a pool is finished; None means that all rounds are run."""
    hints: PoolHints = PoolHints()
    """Hints that make a model think again."""
    prompts: Operational[Path | None] = None
    """Folder with files that replace the prompts of the same names; the fingerprint contains their texts, not the
    path."""
    judge_math: bool = True
    """Whether the judge decides on math answers that rules find unequal; if false, these are wrong."""
    f1_threshold: float = Field(default=DEFAULT_F1_THRESHOLD, ge=0.0, lt=1.0)
    """A qa answer is right if its token F1 is greater than this, or if it matches exactly."""
    max_questions: int | None = Field(default=None, ge=1)
    """Maximum number of questions, taken in their order; None means all."""
    max_questions_per_dataset: int | None = Field(default=None, ge=1)
    """Maximum number of questions per data set; None means all."""
    datasets: tuple[str, ...] = ()
    """Data sets to use; empty means all."""
    split: Literal["train", "heldout"] | None = "train"
    """Split of the questions to use; None means both."""
    question_time_s: float = Field(default=1200.0, gt=0)
    """Time limit in seconds for one question with all its rounds; its pool then has the trajectories finished so
    far."""
    max_error_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Maximum share of failed questions with which the stage may finish if failures are accepted."""
    max_concurrent: Operational[int] = Field(default=32, ge=1)
    """Maximum number of questions in progress at once."""
    pending_retries: Operational[int] = Field(default=2, ge=0)
    """Number of further passes over questions that infrastructure errors left pending."""
    pending_pause_s: Operational[float] = Field(default=5.0, ge=0.0)
    """Pause in seconds before the first further pass over pending questions; doubled for each later one."""
    max_total_tokens: Operational[int | None] = Field(default=None, ge=1)
    """Maximum number of prompt and completion tokens of all roles. Exceeding it stops the run, which can be resumed
    with a higher limit."""
    max_cost: Operational[float | None] = Field(default=None, gt=0.0)
    """Maximum cost of this stage, in the currency of the models' prices. Exceeding it stops the run, which can be
    resumed with a higher limit."""
    shards: Operational[int] = Field(default=1, ge=1, le=MAX_SHARDS)
    """Number of shards into which the work is divided at the start, so that several processes can share it (`treadle
    work`)."""


class PoolsSettings(MixedSettings):
    """All settings that an instance of the stage reads."""

    roles: dict[str, RoleSettings]
    """Settings of policy, critic, refiner, judge, and summarizer if the environment has one."""
    options: PoolOptions = PoolOptions()
    """Options of the pools."""
    prompt_digests: dict[str, str] = {}
    """Prompt -> digest of its texts."""
    operator_versions: dict[str, int] = {}
    """Operator -> version."""
    judge_digest: str = ""
    """Digest of the judge's rules, prompts and thresholds."""
    seed: int = 0
    """Seed of the run; every other seed derives from it."""

    def alone(self, name: str) -> Self:
        """Return the settings of a run that has only the environment `name`, without roles that it does not use."""
        environment = self.named_environments()[name]
        has_summarizer = environment.summarizer is not None
        roles = {role: one for role, one in self.roles.items() if role != "summarizer" or has_summarizer}
        return self.model_copy(update={"environment": environment, "environments": {}, "roles": roles})
