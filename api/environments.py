"""The interface of environments and what an episode is made of."""

from __future__ import annotations

from treadle.agent.contract import Call, Message, ModelTurn, Outcome, Task
from treadle.environments.custom.base import Done, Environment
from treadle.environments.objectives import Objective, objective_of

__all__ = [
    "Call",
    "Done",
    "Environment",
    "Message",
    "ModelTurn",
    "Objective",
    "Outcome",
    "Task",
    "objective_of",
]
