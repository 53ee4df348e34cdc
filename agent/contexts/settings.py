"""Settings of how the context of a rollout is managed. Rules: docs/behaviour/environments.md."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from treadle.agent.contexts.clipping import SelfClip
from treadle.agent.contexts.thinking import LinearThink
from treadle.core.config import Section

THINK_HINT = "Think step by step before you act. Write your thoughts between <think> and </think>."


class ContextSettings(Section):
    """How the context of a rollout is managed."""

    manager: Literal["linear", "linear_think", "context_selfclip"] = "linear"
    """`linear`: append-only, one token sequence per rollout unless contexts are trimmed. `linear_think`: each call of
    the model sees no earlier thoughts, and a hint to think; each is a sample of its own. `context_selfclip`: past
    `clip_tokens`, a model says once per rollout which messages to keep, remove or compress: `roles.clipper` of the
    environment, else the policy itself."""
    think_hint: str = THINK_HINT
    """Text that `linear_think` adds to the first message of the user and to the last message before each call."""
    max_samples: int | None = Field(default=None, ge=1)
    """Most samples of a rollout that reinforcement trains on, spread evenly over it, with the last; none means all."""
    clip_tokens: int = Field(default=8192, ge=1)
    """Tokens after the prompt above which `context_selfclip` asks for its verdict."""

    @field_validator("manager", mode="before")
    @classmethod
    def _refuse_memory(cls, value: object) -> object:
        if value == "memory":
            raise ValueError(
                "the context manager `memory` is not supported; use linear, linear_think or context_selfclip"
            )
        return value

    @property
    def rule(self) -> LinearThink | SelfClip | None:
        """Rule by which requests show something else than all of the context; None for `linear`."""
        if self.manager == "linear_think":
            return LinearThink(self.think_hint)
        return SelfClip(self.clip_tokens) if self.manager == "context_selfclip" else None

    @property
    def asks_for_verdicts(self) -> bool:
        """Whether a model decides what a context keeps."""
        return self.manager == "context_selfclip"

    @property
    def prompt_hint(self) -> str:
        """Text that is added to the last message before the first turn."""
        return self.think_hint if self.manager == "linear_think" else ""
