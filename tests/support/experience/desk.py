"""Scored dialogues, some of them of held-out tasks, and the stage `experience` that reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from support.experience.scripted_author import ScriptedAuthor, roles, valid
from support.preferences.desk import Desk

from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.stage import Instance
from treadle.rl.experience.entry import EXPERIENCE_STAGE
from treadle.rl.experience.settings import ExperienceOptions, ExperienceSettings

HELD_OUT = "c"
INPUTS = {"rollouts": "1/rollouts@base", "scores": "1/scores@base", "questions": "1/questions"}
ADVICE = {
    "strategy": "halve the range that is left",
    "lesson": "never repeat guesses that failed before",
    "comparison": "winners read every hint, losers ignored them",
}


def halving(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """Write a record of each kind, whatever the rollouts can support."""
    task = "alone" if len(shown["rollouts"]) == 1 else "together with many others"
    return [{"kind": kind, "situation": f"{kind} {task}", "advice": advice} for kind, advice in ADVICE.items()]


SERVED = {"scripted": ScriptedAuthor(halving, valid)}
"""Script by model, for a server in a process of its own."""


def experience_instance(url: str | None, **keys: Any) -> Instance:
    """Return `1/experience` over scored rollouts, with its models at a URL; without one it takes a pool alone."""
    summariser, validator = roles(url) if url is not None else (None, None)
    options = ExperienceOptions(**{"pending_retries": 0, **keys})
    settings = ExperienceSettings(summariser=summariser, validator=validator, options=options, seed=1)
    names = INPUTS if url is not None else {"questions": INPUTS["questions"]}
    inputs = {name: (Address.parse(text),) for name, text in names.items()}
    return Instance(address=Address.parse("1/experience"), stage=EXPERIENCE_STAGE, settings=settings, inputs=inputs)


def patient_instance(url: str, outage_wait_s: float = 60.0, **keys: Any) -> Instance:
    """Return `1/experience` that waits for its models for a minute, with one batch at a time."""
    made = experience_instance(url, max_concurrent=1, **keys)
    summariser, validator = roles(url, outage_wait_s=outage_wait_s)
    waiting = made.settings.model_copy(update={"summariser": summariser, "validator": validator})
    return replace(made, settings=waiting)


class ExperienceDesk(Desk):
    """Tasks a and b of the split `train`, and the held-out task c."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.put({"a": (1.0, 0.0, 1.0), "b": (0.0, None), HELD_OUT: (1.0, 0.0)}, held_out=(HELD_OUT,))

    def experience(self, url: str | None, *, force: bool = True, **keys: Any) -> StageRecord:
        """Run the stage."""
        return execute(experience_instance(url, **keys), self.run, force=force)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of the result."""
        return self.rows("1/experience", "experience")
