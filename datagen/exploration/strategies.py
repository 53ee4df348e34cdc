"""Find by name how an agent explores: what it is told, and for how many steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.registry import Entry, Registry
from treadle.datagen.exploration.profile import Profile

FIRST_LINE = "Explore this environment. There is no task to solve."
"""Beginning of the shipped instruction."""


class Strategy(Entry):
    """Settings of a strategy, and the strategy itself. Derive a class and implement `instruction`."""

    type: str = "curious"
    """Type of the strategy: `curious`, `my_file.py:Class` for a class in a file next to the configuration,
    `package.module:Class`, or the name of an entry point."""
    max_steps: int = Field(default=30, ge=1)
    """Most turns of one exploration."""

    def instruction(self, profile: Profile, known: Sequence[str]) -> str:
        """Return the text that replaces a task; `known` are the tasks made from earlier explorations of this state."""
        raise NotImplementedError(f"{type(self).__name__} needs a method instruction(profile, known)")


class CuriousStrategy(Strategy):
    """Tell the agent to look around broadly, then to use what it found, then to look for whole workflows."""

    def instruction(self, profile: Profile, known: Sequence[str]) -> str:
        """See `Strategy`."""
        parts = [
            f"{FIRST_LINE} Find out what is in it and what can be done, so that realistic tasks can be written about "
            "it afterwards.",
            "1. Look around broadly first: try each kind of action once, and read what comes back.\n"
            "2. Then use results as arguments of further actions, and see how things are connected.\n"
            "3. Then try sequences of actions that a user could want, and check their effect.",
            f"Take one action per turn, at most {self.max_steps} turns. Errors are worth knowing too. Do not stop "
            "before you have seen most of the environment, and do not hand anything in.",
            f"The environment:\n{profile.text()}",
        ]
        if known:
            listed = "\n".join(f"- {text}" for text in known)
            parts.append(f"These tasks are known already; explore what they do not touch:\n{listed}")
        return "\n\n".join(parts)


STRATEGIES = Registry(
    base=Strategy,
    key="exploration.strategy",
    group="treadle.strategies",
    example="my_strategies.py:Mine",
    shipped={"curious": "treadle.datagen.exploration.strategies:CuriousStrategy"},
    methods={"instruction": "instruction(profile, known)"},
)
"""Strategies by name."""

AnyStrategy = TypeAliasType(
    "AnyStrategy", Annotated[SerializeAsAny[Strategy], WrapValidator(STRATEGIES.validate), STRATEGIES]
)
"""Settings of a strategy of any type."""
