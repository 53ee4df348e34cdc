"""Table of the stage `guided_rollouts`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import Table, column, renamed, required
from treadle.environments.rollouts.tables import ROLLOUTS

COPIED = (
    "rollout_key", "question_key", "dataset", "domain", "environment", "model", "sample_index", "status", "truncated",
    "first_messages", "segments", "num_turns", "prompt_tokens", "completion_tokens",
)  # fmt: skip
"""Columns that are defined as in the table `rollouts`."""
_CHOICES = pa.list_(
    pa.struct(
        [
            required("chosen", pa.int32()),
            required("num_candidates", pa.int32()),
            required(
                "scored",
                pa.list_(pa.struct([required("candidate", pa.int32()), required("advantage", pa.float64())])),
            ),
        ]
    )
)

GUIDED_ROLLOUTS = Table(
    "guided_rollouts",
    1,
    ("rollout_key",),
    pa.schema(
        [
            *renamed(pa.schema([ROLLOUTS.schema.field(name) for name in COPIED])),
            column(
                "choices",
                _CHOICES,
                "for each turn the number of the chosen candidate, how many there were, and the advantages in nats of "
                "those that differed",
            ),
            column("score", pa.float64(), "as in `scores`; null if the scorer failed", nullable=True),
            column("correct", pa.bool_(), "whether it is right; null without a score", nullable=True),
            column("error", pa.string(), "why there is no score", nullable=True),
        ]
    ),
    "Rollouts whose turns a critic chose among candidates, with hidden information: no policy acts like this.",
    parsed={name: kind for name, kind in ROLLOUTS.parsed.items() if name in COPIED},
)
