"""Convert dialogues of another program to rows of `rollouts`, with ids of the policy's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.agent.contract import Task
from treadle.agent.dialects.base import ANSWER, render
from treadle.agent.trajectory import TRUNCATED_STATUSES, Sample, Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.environments.colbench.settings import ColbenchSettings
from treadle.environments.rollouts.rows import head_of_row, rollout_key, row_of
from treadle.formats.colbench.trajectories import ColbenchTrajectory
from treadle.formats.colbench.whole_text import dialogue_segments, encode_dialogue

IMPORTED = "imported"
"""Operator of an imported dialogue."""


class DialogueRows:
    """Converter of imported dialogues to rows of one stage instance.

    The system message is the run's: the file has only rendered prompts.
    """

    def __init__(self, environment: ColbenchSettings, tokenizer: ChatTokenizer | None, model: str) -> None:
        """Set up the conversion; `model` is the name of the model under which the dialogues are stored."""
        self._environment, self._tokenizer, self._model = environment, tokenizer, model
        self._dialect = environment.turn_dialect
        self._digests = environment.digests()

    def row(self, one: ColbenchTrajectory, question: Mapping[str, Any], sample_index: int) -> dict[str, Any]:
        """Return the row of a dialogue about a question; raise RowRejected if its token ids cannot be determined."""
        head = head_of_row(question, self._model, sample_index, 0) | {
            "rollout_key": rollout_key(question["question_key"], self._model, sample_index, IMPORTED),
            "operator": IMPORTED,
        }
        digest = self._tokenizer.digest if self._tokenizer is not None else ""
        return row_of(head, self._trajectory(one, question), self._digests.of(question), digest)

    def _trajectory(self, one: ColbenchTrajectory, question: Mapping[str, Any]) -> Trajectory:
        messages = self._environment.first_messages(Task.from_row(question))
        if self._tokenizer is None:
            segments = dialogue_segments(one.turns, one.replies, self._dialect, None)
            sample = Sample([], [], [])
        else:
            segments, sample = encode_dialogue(messages, one.turns, one.replies, self._dialect, self._tokenizer)
        is_answered = any(segment.kind == ANSWER for segment in segments)
        status = "answered" if is_answered else "max_turns" if one.has_answer else "no_answer"
        return Trajectory(
            status=status,
            text=render(segments),
            segments=segments,
            samples=[sample],
            calls=[],
            num_turns=len(one.turns),
            truncated=status in TRUNCATED_STATUSES,
            first_messages=tuple(messages),
        )
