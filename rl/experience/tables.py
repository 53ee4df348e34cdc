"""Table of the stage `experience`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import STRINGS, Table, column

EXPERIENCE = Table(
    "experience",
    1,
    ("record_key",),
    pa.schema(
        [
            column("record_key", pa.string(), "16 hex digits: digest of the batch of rollouts and the place in it"),
            column("workspace", pa.string(), "pool that it belongs to"),
            column("kind", pa.string(), "strategy (from successes), lesson (from failures) or comparison (from both)"),
            column("situation", pa.string(), "when it applies"),
            column("advice", pa.string(), "what to do, or to avoid"),
            column("question_keys", STRINGS, "tasks of the split `train` whose rollouts it comes from"),
            column(
                "status",
                pa.string(),
                "stored; refused by the validator; no_verdict of the validator that can be read; duplicate of a stored "
                "record; foreign, of another workspace",
            ),
            column("source", pa.string(), "rollouts, or file of an existing pool"),
        ]
    ),
    "Experience from rollouts of tasks to train on; records with the status `stored` are the pool.",
)
