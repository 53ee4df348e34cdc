"""Tables of the stage `dpo`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import Table, column

PAIR_LOG = Table(
    "pair_log",
    1,
    ("split", "step"),
    pa.schema(
        [
            column("split", pa.string(), "train, or heldout: pairs that are not trained on, measured after each epoch"),
            column("step", pa.int64(), "optimizer step"),
            column("epoch", pa.float64(), "passes over the pairs so far"),
            column("loss", pa.float64(), "mean since the last logged step, or over the held-out pairs"),
            column("accuracy", pa.float64(), "share of pairs whose chosen side has the higher score", nullable=True),
            column("margin", pa.float64(), "mean difference of scores, chosen minus rejected, in nats", nullable=True),
            column("num_pairs", pa.int64(), "number of pairs in these means", nullable=True),
            column("learning_rate", pa.float64(), "at this step; null if held out", nullable=True),
            column("grad_norm", pa.float64(), "before clipping; null if held out", nullable=True),
            column("seconds", pa.float64(), "training time so far, over all attempts; null if held out", nullable=True),
        ]
    ),
    "Loss, accuracy and margin over the steps of a training on preferences.",
    required=False,
)
