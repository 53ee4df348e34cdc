"""Dialogues with a stub partner that replies at once, with as many calls and tokens as rollouts with stub tools."""

from __future__ import annotations

from benchmarks.parts.stub_server import RESULT_TEXT, TURNS
from treadle.api import Done, Environment, ModelTurn
from treadle.environments.question.settings import QuestionSettings

TYPE = f"{__name__}:Partner"
"""Value of `environment.type`."""


class Partner(Environment):
    """Partner who gives a text of its own after each turn but the last."""

    system = QuestionSettings().system_text

    async def step(self, turn: ModelTurn) -> str | Done:
        """Reply, or end the dialogue."""
        # Replies differ, so that none comes from the tokenizer's cache of pieces.
        return Done(reward=1.0) if turn.number == len(TURNS) - 1 else f"{RESULT_TEXT}{self._seed}.{turn.number}"
