"""Give experience that fits a task to rollouts of its group, as hints that engines add to the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from treadle.agent.contract import Episode, EpisodeOptions, Task
from treadle.agent.rollout import with_hint
from treadle.core.chat import ChatTokenizer
from treadle.environments.mixture import Environments, find_environment
from treadle.environments.opening import shown_messages
from treadle.environments.types import EnvironmentRuntime
from treadle.rl.experience.modes import hinted_rollouts
from treadle.rl.experience.pool import ExperiencePool, shown_text
from treadle.rl.experience.settings import PLACEHOLDER, ExperienceUse

Fits = Callable[[Task, str], bool]
"""Function from a task and a hint to whether the task's prompt with the hint is short enough."""


def prompt_fits(environments: Environments, codec: ChatTokenizer, max_tokens: int) -> Fits:
    """Return a function that checks whether a task's prompt with a hint has at most `max_tokens` tokens.

    Parts of a prompt that only an open environment can give are not counted.
    """
    dialects = {name: one.turn_dialect.bound(codec, is_chat=False) for name, one in environments.items()}

    def fits(task: Task, hint: str) -> bool:
        environment = find_environment(environments, task.environment)
        shown = with_hint(shown_messages(environment, task), environment.context.prompt_hint)
        prompt = dialects[task.environment].tool_prompt(with_hint(shown, hint), environment.known_tools)
        return len(codec.prompt_ids(*prompt)) <= max_tokens

    return fits


@dataclass(frozen=True, slots=True)
class Hints:
    """Experience for the groups of one step.

    Attributes:
        use: Settings that decide which rollouts see experience, and how many records.
        pool: The records.
        kept: Keys of the tasks whose training prompts keep the experience that rollouts saw; from others it is cut.
        fits: Function that checks whether a task's prompt with a hint is short enough.
    """

    use: ExperienceUse
    pool: ExperiencePool
    kept: frozenset[str] = frozenset()
    fits: Fits = lambda task, hint: True

    def text_of(self, task: Task) -> str:
        """Return the hint for a task; empty if nothing is found, or if the prompt has no room for the best record."""
        found = self.pool.find(task.user_message, self.use.top_k)
        while found:
            hint = self.use.template.replace(PLACEHOLDER, shown_text(found))
            if self.fits(task, hint):
                return hint
            found.pop()
        return ""

    async def added_to(self, options: Sequence[EpisodeOptions], task: Task, seed: int) -> list[EpisodeOptions]:
        """Return the options of a group's rollouts, with a hint in those that `rollout_mode` chooses."""
        # In a thread: a slow encoder must not block other groups on the event loop.
        hint = await asyncio.to_thread(self.text_of, task)
        chosen = hinted_rollouts(self.use, len(options), seed) if hint else frozenset()
        return [self._hinted(one, hint, task) if place in chosen else one for place, one in enumerate(options)]

    def _hinted(self, options: EpisodeOptions, hint: str, task: Task) -> EpisodeOptions:
        if options.hint:
            # The environment's own hint is always cut from training prompts, and the joined text only as a whole.
            return replace(options, hint=f"{options.hint}\n\n{hint}")
        return replace(options, hint=hint, trains_on_hint=task.key in self.kept)


@dataclass(frozen=True, slots=True)
class HintedRuntime:
    """Open environment whose groups get hints."""

    runtime: EnvironmentRuntime
    hints: Hints

    def episode(self) -> Episode:
        """See `EnvironmentRuntime`."""
        return self.runtime.episode()

    def facts(self) -> dict[str, str]:
        """See `EnvironmentRuntime`."""
        return self.runtime.facts()

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        """See `EnvironmentRuntime`; `rollout_mode` chooses the rollouts that get a hint."""
        return await self.hints.added_to(await self.runtime.group_options(task, size, seed), task, seed)
