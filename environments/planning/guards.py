"""Notice a planning agent that goes in circles, and count its candidate answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import groupby

from treadle.agent.contract import FAILED_STATUSES, ModelTurn, Observation
from treadle.agent.dialects.base import FRAME, RESULT, TEXT
from treadle.core.answers.extraction import BY_CANDIDATE, CANDIDATE, candidate_of
from treadle.environments.planning.dialect import PlanningDialect

REPEATED = "repeated step"
"""Note of the refused calls of a step that was written before."""
MONOTONOUS = "same kind of step"
"""Note of the refused calls of a step that follows too many of its kind."""
NOTICES = {
    REPEATED: "This step was written before, so it is not run. Do something else, or put together what is known.",
    MONOTONOUS: "Too many steps of this kind follow each other, so this one is not run. Do something of another kind.",
}
MAX_EQUAL_STEPS = 5
"""Number of steps of the same kind in a row at which the last one is not run."""
MAX_CANDIDATES = 3
"""Number of candidate answers at which the last one is taken as the answer."""

_THINK = "think"


@dataclass(slots=True)
class StepGuard:
    """Guard over the steps of one rollout: a step is the part of a turn after its last thought."""

    dialect: PlanningDialect
    num_candidates: int = 0
    has_answer: bool = False
    _kinds: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_EQUAL_STEPS - 1))
    _texts: list[tuple[int, str]] = field(default_factory=list)

    def fault(self, turn: ModelTurn, shown_from: int = 0) -> str | None:
        """Return the note for the calls of a step that must not be run; None for other steps.

        Steps before the turn `shown_from`, which the model no longer sees, may be written again.
        """
        kinds, text = self._step(turn)
        if text and text in "\n".join(step for number, step in self._texts if number >= shown_from):
            return REPEATED
        row = [*self._kinds, *kinds]
        return MONOTONOUS if len(row) >= MAX_EQUAL_STEPS and len(set(row[-MAX_EQUAL_STEPS:])) == 1 else None

    def read(self, turn: ModelTurn) -> None:
        """Count the candidates of a turn. Call this before the turn's calls run, since they may time out."""
        self.num_candidates += self._candidates(turn)
        self.has_answer = self.has_answer or self.dialect.has_answer(turn)

    def is_last_candidate(self, turn: ModelTurn) -> bool:
        """Return whether a turn that was read has the candidate that is taken as the answer."""
        return self.num_candidates >= MAX_CANDIDATES and self._candidates(turn) > 0

    def keep(self, turn: ModelTurn, observation: Observation) -> None:
        """Remember the step of a turn; a step whose calls all failed may be written again."""
        kinds, text = self._step(turn)
        self._kinds.extend(kinds)
        failed = [call.status in FAILED_STATUSES for call in observation.calls]
        if text and not (failed and all(failed)):
            self._texts.append((turn.number, text))

    def parts(self) -> dict[str, float]:
        """Return the number of candidates, and 1 if a candidate is taken as the answer for lack of another, else 0."""
        taken = self.num_candidates > 0 and not self.has_answer
        return {"candidates": float(self.num_candidates), BY_CANDIDATE: float(taken)}

    def _candidates(self, turn: ModelTurn) -> int:
        pieces = self.dialect.segments(turn.text)
        return sum(piece.kind == CANDIDATE and bool(candidate_of(piece.text)) for piece in pieces)

    def _step(self, turn: ModelTurn) -> tuple[list[str], str]:
        """Return the kinds of a turn's blocks, equal ones in a row as one, and its text after the last thought."""
        pieces = self.dialect.segments(turn.text)
        after = max((place for place, piece in enumerate(pieces) if piece.kind == _THINK), default=-1) + 1
        kinds = [piece.kind for piece in pieces if piece.kind not in (_THINK, TEXT, FRAME, RESULT)]
        kinds += [call.tool for call in turn.calls if call.tool not in kinds]  # calls of missing tools
        return [kind for kind, _ in groupby(kinds)], "".join(piece.text for piece in pieces[after:]).strip()
