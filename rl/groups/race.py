"""Run the rollouts of an over-sampled group concurrently until enough have finished, and cancel the others.

The rule (`treadle.rl.groups.oversampling`) is checked whenever a rollout ends or is lost, so nothing polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from treadle.rl.groups.oversampling import OverSampling, diverse_subset


class Race:
    """Rollouts of one group, of which the first ones to finish are trained on.

    Attributes:
        order: Numbers of the finished rollouts, in the order in which they were rewarded.
        rewards: Number of a finished rollout -> its reward, None for a rollout without one.
    """

    def __init__(
        self, rule: OverSampling, reward_of: Callable[[int], Awaitable[float | None]], *, is_audit: bool
    ) -> None:
        """Prepare a race; `reward_of` returns the reward of a finished rollout, given its number.

        In an audited group (`is_audit`) no rollout is cancelled.
        """
        self.order: list[int] = []
        self.rewards: dict[int, float | None] = {}
        self._rule = rule
        self._reward_of = reward_of
        self._is_audit = is_audit
        self._num_open = rule.num_started
        self._num_in_time: int | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ended: set[int] = set()
        # Rewards are computed one at a time, so that rollouts that end at the same moment have an order.
        self._rewarding = asyncio.Lock()

    async def run(self, number: int, play: Callable[[], Awaitable[bool]]) -> None:
        """Play a rollout to its end and reward it, unless the race is over first; errors of `play` are raised.

        `play` returns False if the rollout was lost because infrastructure failed.
        """
        if self._is_over:
            return
        task = self._tasks[number] = asyncio.create_task(self._run(number, play))
        try:
            await asyncio.wait([task])
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    def lose(self) -> None:
        """Count a rollout that could not be started."""
        self._leave()

    def in_time(self) -> list[int]:
        """Return the numbers of the rollouts that finished before the race was over, in the order of finishing."""
        return self.order[: self._num_in_time]

    def was_cancelled(self, number: int) -> bool:
        """Return whether a rollout had not ended when it was cancelled."""
        return number not in self._ended

    def chosen(self) -> list[int]:
        """Return the numbers of the rollouts to train on; ones without a reward only if there are too few others."""
        finished = self.in_time()
        rewarded = {number: reward for number in finished if (reward := self.rewards[number]) is not None}
        numbers = list(rewarded)
        chosen = [numbers[place] for place in diverse_subset(list(rewarded.values()), self._rule.size)]
        others = [number for number in finished if number not in rewarded]
        return sorted([*chosen, *others[: self._rule.size - len(chosen)]])

    @property
    def _is_over(self) -> bool:
        return self._num_in_time is not None and not self._is_audit

    async def _run(self, number: int, play: Callable[[], Awaitable[bool]]) -> None:
        was_played = await play()
        self._ended.add(number)
        # Yield first, so that rollouts whose completions came in the same batch count their tokens before they may be
        # cancelled.
        await asyncio.sleep(0)
        if was_played:
            async with self._rewarding:
                self.rewards[number] = await self._reward_of(number)
            self.order.append(number)
        self._leave()

    def _leave(self) -> None:
        self._num_open -= 1
        known = [reward for number in self.order if (reward := self.rewards[number]) is not None]
        if self._num_in_time is None and self._rule.is_done(known, self._num_open):
            self._num_in_time = len(self.order)
            if not self._is_audit:
                for number, task in self._tasks.items():
                    if number not in self.order:
                        task.cancel()
