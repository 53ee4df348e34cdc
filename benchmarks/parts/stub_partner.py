"""Dialogues with a stub partner that replies at once, with as many calls and tokens as rollouts with stub tools."""

from __future__ import annotations

import asyncio
import ctypes
from typing import ClassVar

from benchmarks.parts.measuring import memory_kib
from benchmarks.parts.stub_server import RESULT_TEXT, TURNS
from treadle.api import Done, Environment, ModelTurn
from treadle.environments.question.settings import QuestionSettings


class Partner(Environment):
    """Partner who gives a text of its own after each turn but the last."""

    system = QuestionSettings().system_text

    async def step(self, turn: ModelTurn) -> str | Done:
        """Reply, or end the dialogue."""
        # Replies differ, so that none comes from the tokenizer's cache of pieces.
        return Done(reward=1.0) if turn.number == len(TURNS) - 1 else f"{RESULT_TEXT}{self._seed}.{turn.number}"


class HeldPartner(Partner):
    """The same, but all dialogues wait for each other before the end of the last turn.

    Attributes:
        barrier: Where they wait.
        held_kib: Private memory of the process while all of them wait, without free memory; its largest value.
    """

    barrier: ClassVar[asyncio.Barrier]
    held_kib: ClassVar[int] = 0

    async def step(self, turn: ModelTurn) -> str | Done:
        """Wait in the last turn."""
        if turn.number == len(TURNS) - 1 and await self.barrier.wait() == 0:
            # The buffers of the requests before are free by now, but the C library keeps them.
            ctypes.CDLL(None).malloc_trim(0)
            HeldPartner.held_kib = max(self.held_kib, memory_kib("RssAnon"))
        return await super().step(turn)


TYPE, HELD_TYPE = f"{__name__}:{Partner.__name__}", f"{__name__}:{HeldPartner.__name__}"
"""Values of `environment.type`."""
