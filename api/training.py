"""The interfaces of training engines, rewards, credit rules and the selection of rows."""

from __future__ import annotations

from treadle.core.engines.events import EventFile, mark_complete
from treadle.core.engines.own_code import own_code
from treadle.rl.credit.base import Credit, CreditGroup, CreditRule
from treadle.rl.rewards.base import GroupItem, Reward, RewardGroup, RewardRule
from treadle.rl.selection.methods.base import Candidates, Ranking, SelectionMethod
from treadle.rl.training_engine import RlEngine
from treadle.sft.training_engine import SftEngine

__all__ = [
    "Candidates",
    "Credit",
    "CreditGroup",
    "CreditRule",
    "EventFile",
    "GroupItem",
    "Ranking",
    "Reward",
    "RewardGroup",
    "RewardRule",
    "RlEngine",
    "SelectionMethod",
    "SftEngine",
    "mark_complete",
    "own_code",
]
