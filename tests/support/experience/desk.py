"""Scored dialogues, some of them of held-out tasks, and the stage `experience` that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.experience.scripted_author import roles
from support.preferences.desk import Desk
from support.servers.scripted_server import ScriptedServer

from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.stage import Instance
from treadle.rl.experience.entry import EXPERIENCE_STAGE
from treadle.rl.experience.settings import ExperienceOptions, ExperienceSettings

HELD_OUT = "c"
INPUTS = {"rollouts": "1/rollouts@base", "scores": "1/scores@base", "questions": "1/questions"}


class ExperienceDesk(Desk):
    """Tasks a and b of the split `train`, and the held-out task c."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.put({"a": (1.0, 0.0, 1.0), "b": (0.0, None), HELD_OUT: (1.0, 0.0)}, held_out=(HELD_OUT,))

    def experience(self, server: ScriptedServer | None, *, force: bool = True, **keys: Any) -> StageRecord:
        """Run the stage."""
        execution = {name: keys.pop(name) for name in ("accept_failures",) if name in keys}
        summariser, validator = roles(server) if server is not None else (None, None)
        settings = ExperienceSettings(
            summariser=summariser,
            validator=validator,
            options=ExperienceOptions(**{"pending_retries": 0, **keys}),
            seed=1,
        )
        names = INPUTS if server is not None else {"questions": INPUTS["questions"]}
        inputs = {name: (Address.parse(text),) for name, text in names.items()}
        instance = Instance(
            address=Address.parse("1/experience"), stage=EXPERIENCE_STAGE, settings=settings, inputs=inputs
        )
        return execute(instance, self.run, force=force, **execution)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of the result."""
        return self.rows("1/experience", "experience")
