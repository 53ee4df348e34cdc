"""The interfaces of scorers and judges, and what they are shown."""

from __future__ import annotations

from treadle.agent.judges.base import Grade, Judge
from treadle.agent.judges.views import View
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.score import Score
from treadle.core.untrusted.prompt_text import as_data
from treadle.environments.scorers.base import Scorer
from treadle.environments.stored_rollout import StoredRollout

__all__ = [
    "Grade",
    "Judge",
    "Score",
    "Scorer",
    "StoredRollout",
    "Trajectory",
    "View",
    "as_data",
]
