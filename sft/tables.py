"""Tables of the stage `sft`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import Table, column

TRAINING_LOG = Table(
    "training_log",
    1,
    ("step",),
    pa.schema(
        [
            column("step", pa.int64(), "optimizer step"),
            column("epoch", pa.float64(), "passes over the rows so far"),
            column("loss", pa.float64(), "mean since the last logged step"),
            column("learning_rate", pa.float64(), "at this step"),
            column("grad_norm", pa.float64(), "before clipping", nullable=True),
            column("seconds", pa.float64(), "since training began in this attempt"),
        ]
    ),
    "Loss and learning rate over the steps of a training.",
    required=False,
)
