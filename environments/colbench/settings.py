"""Settings of the environment `colbench/backend`. Rules: docs/guides/colbench.md."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from treadle.agent.contract import Task
from treadle.core.llm.config import Sampling
from treadle.environments.colbench.dialect import ColbenchDialect
from treadle.environments.colbench.prompts import instructions
from treadle.environments.settings import EnvironmentRole, EnvironmentSettings

HUMAN = "human"
"""Role of the model that plays the person."""


class HumanSampling(Sampling):
    """Sampling parameters of the person's replies."""

    temperature: float = Field(default=0.0, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most new tokens of one reply, which is then cut to `reply_chars`."""


class HumanRole(EnvironmentRole):
    """Model that plays the person, who knows the reference program."""

    model: str = HUMAN
    """Name of the model under `models`."""
    sampling: HumanSampling = HumanSampling()
    """Sampling parameters of its replies."""
    reply_chars: int = Field(default=400, ge=1)
    """Longest reply in characters; a longer one is cut."""
    instructions: str | None = None
    """Text that replaces the shipped instructions; `{description}`, `{reference}`, `{transcript}` and `{cue}` are
    filled in."""


class ColbenchSettings(EnvironmentSettings):
    """Dialogue between an agent and a person with hidden requirements, until the agent answers with a program."""

    PROMPTS: ClassVar[tuple[str, str]] = ("agent", "human")
    """Names of the shipped instructions of agent and person."""

    type: str = "colbench/backend"
    """Type of the environment."""
    profile: Literal["default", "legacy"] = "default"
    """`legacy` reads markers, cuts replies and ends dialogues as the published program does, to compare with published
    figures: `OUTPUT:` counts inside code, replies end in the middle of words, and no notice precedes the last turn."""
    human: HumanRole = HumanRole()
    """The person."""
    instructions: str | None = None
    """Text that replaces the agent's shipped system message; `{max_turns}` is filled in. An empty one leaves the
    message out."""

    @model_validator(mode="after")
    def _check_no_tools(self) -> Self:
        if self.tools:
            raise ValueError(f"{self.type} has no calls, so its tools would never run; remove environment.tools")
        return self

    @property
    def is_legacy(self) -> bool:
        """Whether the profile is that of the published program."""
        return self.profile == "legacy"

    @property
    def turn_dialect(self) -> ColbenchDialect:
        """See `EnvironmentSettings`."""
        return ColbenchDialect(legacy=self.is_legacy)

    @property
    def role_names(self) -> tuple[str, ...]:
        """See `EnvironmentSettings`."""
        return (HUMAN,)

    @property
    def role_models(self) -> dict[str, EnvironmentRole]:
        """See `EnvironmentSettings`."""
        return {**super().role_models, HUMAN: self.human}

    def first_messages(self, task: Task) -> list[dict[str, str]]:
        """See `EnvironmentSettings`."""
        system = [{"role": "system", "content": self.agent_prompt}] if self.agent_prompt else []
        return [*system, {"role": "user", "content": task.text}]

    @property
    def agent_prompt(self) -> str:
        """System message of the agent."""
        text = instructions(self.PROMPTS[0]) if self.instructions is None else self.instructions
        return text.replace("{max_turns}", str(self.turn_limit()))

    @property
    def human_prompt(self) -> str:
        """Instructions of the person, with placeholders for the task and the dialogue."""
        return instructions(self.PROMPTS[1]) if self.human.instructions is None else self.human.instructions

    @property
    def num_result_chars(self) -> float:
        """See `EnvironmentSettings`."""
        return float(self.human.reply_chars)

    @property
    def num_system_chars(self) -> int:
        """See `EnvironmentSettings`."""
        return len(self.agent_prompt)

    def digest_parts(self, form: str | None) -> dict[str, Any]:
        """See `EnvironmentSettings`."""
        return {"agent": self.agent_prompt, "human": self.human_prompt}
