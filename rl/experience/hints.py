"""Give rollouts of a group experience that fits their task, as hints that engines add to the prompt."""

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
"""Check of whether a task's prompt with a hint is short enough."""


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
        use: Which rollouts see it, and how much.
        pool: The records.
        kept: Tasks whose training prompts keep it.
        fits: Whether a prompt with a hint is short enough.
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
        """Return the options of a group, with the task's hint in those that the mode chooses."""
        # An encoder may take longer than other groups of the event loop should wait.
        hint = await asyncio.to_thread(self.text_of, task)
        chosen = hinted_rollouts(self.use, len(options), seed) if hint else frozenset()
        return [self._hinted(one, hint, task) if place in chosen else one for place, one in enumerate(options)]

    def _hinted(self, options: EpisodeOptions, hint: str, task: Task) -> EpisodeOptions:
        if options.hint:
            # A hint of the environment itself is always cut, and the two cannot be separated later.
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
        """See `EnvironmentRuntime`; the mode chooses who gets a hint."""
        return await self.hints.added_to(await self.runtime.group_options(task, size, seed), task, seed)
