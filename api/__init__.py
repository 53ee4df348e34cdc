"""Everything that code outside Treadle may import: the interfaces of its extension points, and what they need.

Environments, tools and operators (docs/guides) are written against it. Any other module of Treadle may change or move
without notice.
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
from treadle.core.engines.own_code import own_code
from treadle.core.errors import ToolError, TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.untrusted.prompt_text import as_data
from treadle.datagen.operators.base import Branch, Edit, Operator
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.rejection import EditRejected
from treadle.environments.custom.base import Done, Environment
from treadle.environments.stored_rollout import StoredRollout
from treadle.rl.selection.methods.base import Candidates, Ranking, SelectionMethod

__all__ = [
    "Address",
    "Branch",
    "Call",
    "CallContext",
    "Candidates",
    "Done",
    "Edit",
    "EditRejected",
    "Environment",
    "FreeDialect",
    "FunctionsDialect",
    "Grade",
    "Judge",
    "Message",
    "ModelTurn",
    "Operator",
    "OperatorContext",
    "Outcome",
    "Ranking",
    "Run",
    "SelectionMethod",
    "StoredRollout",
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
    "own_code",
    "tool",
]
