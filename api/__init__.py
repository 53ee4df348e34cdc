"""Everything that code outside Treadle may import: the interfaces of its extension points, and what they need.

Environments, tools, scorers, operators, reward and credit rules and training engines (docs/guides) are written against
it: `from treadle.api import X`. `evaluate`, `run_flow` and `run_stage` make runs, `open_run` loads their tables. Any
other module of Treadle, those of this package included, may change or move without notice.
"""

from __future__ import annotations

from treadle.api.dialects import FreeDialect, FunctionsDialect, Tag, TagDialect
from treadle.api.environments import Call, Done, Environment, Message, ModelTurn, Objective, Outcome, Task, objective_of
from treadle.api.exploration import Draft, DraftFilter, Profile, Strategy
from treadle.api.operators import Branch, Edit, EditRejected, Operator, OperatorContext
from treadle.api.runs import evaluate, open_run, run_flow, run_stage
from treadle.api.scoring import Grade, Judge, Score, Scorer, StoredRollout, Trajectory, View, as_data
from treadle.api.stages import (
    Address,
    Plan,
    Recipe,
    Run,
    Section,
    Stage,
    StageContext,
    StageEntry,
    StageReport,
    Step,
    Table,
    TreadleError,
    column,
)
from treadle.api.tools import CallContext, ToolError, ToolOutcome, ToolSchema, tool
from treadle.api.training import (
    Candidates,
    Credit,
    CreditGroup,
    CreditRule,
    EventFile,
    GroupItem,
    Ranking,
    Reward,
    RewardGroup,
    RewardRule,
    RlEngine,
    SelectionMethod,
    SftEngine,
    mark_complete,
    own_code,
)

__all__ = [
    "Address",
    "Branch",
    "Call",
    "CallContext",
    "Candidates",
    "Credit",
    "CreditGroup",
    "CreditRule",
    "Done",
    "Draft",
    "DraftFilter",
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
    "Objective",
    "Operator",
    "OperatorContext",
    "Outcome",
    "Plan",
    "Profile",
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
    "Strategy",
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
    "evaluate",
    "mark_complete",
    "objective_of",
    "open_run",
    "own_code",
    "run_flow",
    "run_stage",
    "tool",
]
