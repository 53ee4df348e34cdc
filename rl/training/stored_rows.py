"""Select the rows that an engine trains and validates on: those whose prompts are short enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.runs.stage import Rows
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.verl.rows import TRAINING_COLUMNS, training_rows

Fits = Callable[[Mapping[str, Any]], bool]
"""Check of whether the prompt of a row is short enough."""


class FittingRows:
    """Batches of `TRAINING_SCHEMA` in their order, without the rows whose prompts are too long; these are counted."""

    def __init__(self, batches: Iterable[pa.RecordBatch], fits: Fits) -> None:
        self._batches = batches
        self._fits = fits
        self.num_rows = self.num_too_long = 0
        """Numbers of rows yielded so far and of rows left out."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches without the rows that do not fit."""
        for batch in self._batches:
            kept = batch.filter(pa.array([self._fits(row) for row in batch.to_pylist()], pa.bool_()))
            self.num_rows += kept.num_rows
            self.num_too_long += batch.num_rows - kept.num_rows
            yield kept


def rows_to_train_on(tables: Sequence[Rows]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `rl_rows` in batches of `TRAINING_SCHEMA`."""
    for table in tables:
        yield from map(training_rows, table.batches(TRAINING_COLUMNS))


def prompt_fits(environment: EnvironmentSettings, tokenizer: ChatTokenizer, max_tokens: int) -> Fits:
    """Return a function that checks whether a row's prompt, as the policy gets it, has at most `max_tokens` tokens."""

    def fits(row: Mapping[str, Any]) -> bool:
        messages = environment.first_messages(Task.from_row(row))
        # Messages that only an episode knows are checked when it begins.
        return messages is None or len(tokenizer.prompt_ids(messages)) <= max_tokens

    return fits
