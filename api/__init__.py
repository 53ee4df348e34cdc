"""Everything that code outside Treadle may import: the interfaces of its extension points, and what they need.

Environments, tools, scorers, operators, reward and credit rules and training engines (docs/guides) are written against
it. Any other module of Treadle may change or move without notice.
"""

from __future__ import annotations

from treadle.agent.contract import Call, Message, ModelTurn, Outcome, Task
from treadle.agent.dialects.free import FreeDialect
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.dialects.tag_table import Tag
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.judges.base import Grade, Judge
from treadle.agent.judges.views import View
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.user_tool import tool
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.score import Score
from treadle.core.config import Section
from treadle.core.engines.events import EventFile, mark_complete
from treadle.core.engines.own_code import own_code
from treadle.core.errors import ToolError, TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Stage, StageContext
from treadle.core.tables import Table, column
from treadle.core.untrusted.prompt_text import as_data
from treadle.datagen.operators.base import Branch, Edit, Operator
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.rejection import EditRejected
from treadle.environments.custom.base import Done, Environment
from treadle.environments.scorers.base import Scorer
from treadle.environments.stored_rollout import StoredRollout
from treadle.rl.credit.base import CreditGroup, CreditRule
from treadle.rl.rewards.base import GroupItem, Reward, RewardGroup, RewardRule
from treadle.rl.selection.methods.base import Candidates, Ranking, SelectionMethod
from treadle.rl.training_engine import RlEngine
from treadle.sft.training_engine import SftEngine
from treadle.stages.entry import StageEntry
from treadle.stages.plan import Plan
from treadle.stages.recipes.base import Recipe, Step
from treadle.stages.report import StageReport

__all__ = [
    "Address",
    "Branch",
    "Call",
    "CallContext",
    "Candidates",
    "CreditGroup",
    "CreditRule",
    "Done",
    "Edit",
    "EditRejected",
    "Environment",
    "EventFile",
    "FreeDialect",
    "FunctionsDialect",
    "Grade",
    "GroupItem",
    "Judge",
    "Message",
    "ModelTurn",
    "Operator",
    "OperatorContext",
    "Outcome",
    "Plan",
    "Ranking",
    "Recipe",
    "Reward",
    "RewardGroup",
    "RewardRule",
    "RlEngine",
    "Run",
    "Score",
    "Scorer",
    "Section",
    "SelectionMethod",
    "SftEngine",
    "Stage",
    "StageContext",
    "StageEntry",
    "StageReport",
    "Step",
    "StoredRollout",
    "Table",
    "Tag",
    "TagDialect",
    "Task",
    "ToolError",
    "ToolOutcome",
    "ToolSchema",
    "Trajectory",
    "TreadleError",
    "View",
    "as_data",
    "column",
    "mark_complete",
    "own_code",
    "tool",
]
