"""Let a model make tasks of an exploration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from treadle.agent.call_cache import CallCache
from treadle.agent.role import RoleModel
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import ContextTooLong, DeadlineExceeded
from treadle.core.seeds import derive_seed
from treadle.core.untrusted.prompt_text import as_data
from treadle.core.work_clock import timed_work
from treadle.datagen.exploration.drafts import DraftList, read_summary
from treadle.datagen.exploration.profile import Profile
from treadle.datagen.exploration.settings import ExplorationOptions
from treadle.datagen.prompts import SUMMARISE, PromptSet
from treadle.environments.steps import shown_steps

_STEPS_SHOWN = (200, 60, 20, 8)
"""Maximum numbers of steps to show, tried one after the other until the prompt fits into the model's window."""


@dataclass(frozen=True, slots=True)
class Summariser:
    """The model that makes tasks, with its prompt.

    Attributes:
        seed: Seed of the run.
    """

    model: RoleModel
    options: ExplorationOptions
    prompts: PromptSet
    seed: int

    async def summarise(
        self,
        trajectory: Trajectory,
        profile: Profile,
        known: Sequence[str],
        *,
        seed_key: str,
        exploration: int,
        cache: CallCache,
    ) -> DraftList | None:
        """Return the tasks that the model made of an exploration; None if no reply can be read.

        `known` are the tasks made from earlier explorations of this state. Each reply is stored in `cache` before it is
        used.
        """
        with timed_work() as clock:
            deadline = clock.time() + self.options.summary_time_s
            for number in range(self.options.attempts):
                try:
                    reply = await self.model.ask_first_fitting(
                        [self._messages(trajectory, profile, known, most) for most in _STEPS_SHOWN],
                        cache=cache,
                        unit=str(number),
                        seed=derive_seed(self.seed, "summarise", seed_key, exploration, number),
                        session=seed_key,
                        deadline=deadline,
                    )
                except (ContextTooLong, DeadlineExceeded):
                    return None
                if (summary := read_summary(reply.text, seed_key, exploration)) is not None:
                    return summary
        return None

    def _messages(
        self, trajectory: Trajectory, profile: Profile, known: Sequence[str], max_steps: int
    ) -> list[dict[str, str]]:
        shown = {
            "environment": profile.shown(),
            "known": [as_data(query) for query in known],
            "score": trajectory.reward,
            "steps": shown_steps(trajectory.segments, self.options.step_chars, max_steps),
        }
        return self.prompts.messages(SUMMARISE[0], {"exploration": orjson.dumps(shown).decode()})
