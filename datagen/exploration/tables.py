"""Tables of the stage `exploration`."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from treadle.core.tables import Table, column
from treadle.datagen.questions.tables import QUESTIONS

SYNTHETIC_TASKS = replace(
    QUESTIONS,
    kind="synthetic_tasks",
    version=1,
    description="Tasks that were made by exploring, with the columns of `questions`, for its mixture.",
)

OBJECTIVES = Table(
    "objectives",
    1,
    ("objective_key",),
    pa.schema(
        [
            column("objective_key", pa.string(), "16 hex digits: digest of seed task, query and drafted reference"),
            column("seed_key", pa.string(), "question_key of the task whose state was explored"),
            column("exploration", pa.int32(), "number of the exploration of the seed task, from 0"),
            column("query", pa.string(), "what is asked"),
            column("confidence", pa.float64(), "of the summariser, from 0 to 1"),
            column(
                "status",
                pa.string(),
                "kept; filtered: alike a more confident task; infeasible: the solver missed the goal; ungraded: no "
                "verdict on the replay; duplicate: another task has its key; failed: infrastructure, accepted",
            ),
            column("reason", pa.string(), "type of the filter, or what the grader or infrastructure said; or empty"),
            column("drafted_reference", pa.string(), "JSON list: actions that the summariser gave"),
            column("reference", pa.string(), "JSON list: actions of the successful replay; [] unless it was kept"),
            column("score", pa.float64(), "of the replay by the grader; null without one", nullable=True),
            column("replay_status", pa.string(), "how the replay ended; null without one", nullable=True),
            column("question_key", pa.string(), "key of the task that it became; null unless kept", nullable=True),
        ]
    ),
    "Tasks that a model made of explorations, kept or not, each with its reason.",
    required=False,
    hidden=frozenset({"drafted_reference", "reference"}),
)
