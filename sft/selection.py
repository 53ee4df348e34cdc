"""Select the rows of `sft_rows` to train on: those with token ids, within the cut-off, up to a maximum number."""

from __future__ import annotations

import pyarrow as pa

from treadle.sft.config import SftOptions


class RowSelection:
    """A filter that takes rows batch by batch, in their order (they are shuffled), and counts the rows it leaves out.

    Rows are never truncated: half a trajectory would teach the model to stop in the middle.
    """

    def __init__(self, options: SftOptions) -> None:
        self._cutoff_tokens = options.cutoff_tokens
        self._max_rows = options.max_rows
        self.num_read = 0
        """Number of rows read."""
        self.num_text_mode = 0
        """Number of these without token ids."""
        self.num_too_long = 0
        """Number of these longer than `cutoff_tokens`."""
        self.num_over_limit = 0
        """Number of these beyond `max_rows`."""
        self.num_rows = 0
        """Number of these taken."""
        self.longest_row = 0
        """Number of tokens of the longest row taken."""

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch to train on; the batch must have the column `num_tokens`."""
        import pyarrow.compute as pc

        self.num_read += batch.num_rows
        taken = batch.filter(pc.greater(batch["num_tokens"], 0))
        self.num_text_mode += batch.num_rows - taken.num_rows
        if self._cutoff_tokens is not None:
            fitting = taken.filter(pc.less_equal(taken["num_tokens"], self._cutoff_tokens))
            self.num_too_long += taken.num_rows - fitting.num_rows
            taken = fitting
        if self._max_rows is not None:
            wanted = taken.slice(0, self._max_rows - self.num_rows)
            self.num_over_limit += taken.num_rows - wanted.num_rows
            taken = wanted
        if taken.num_rows:
            self.num_rows += taken.num_rows
            self.longest_row = max(self.longest_row, pc.max(taken["num_tokens"]).as_py())
        return taken

    def left_out(self) -> dict[str, int]:
        """Return the number of rows left out, by reason."""
        return {"text_mode": self.num_text_mode, "too_long": self.num_too_long, "over_limit": self.num_over_limit}
