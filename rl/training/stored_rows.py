"""Select the rows that an engine trains and validates on: questions whose prompts are short enough."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from treadle.agent.contract import TASK_COLUMNS, Task
from treadle.core.chat import ChatTokenizer
from treadle.core.runs.stage import Rows
from treadle.environments.mixture import Environments, find_environment
from treadle.rl.verl.rows import TRAINING_COLUMNS, training_rows

PAYLOAD_SCHEMA = pa.schema([("question_key", pa.string()), ("payload", pa.string())])
"""Schema of the hidden file of payloads, each a JSON object as text."""

Fits = Callable[[Mapping[str, Any]], bool]
"""Function from a row to whether its prompt is short enough."""


class FittingRows:
    """Batches of `TRAINING_SCHEMA` in their order, without the rows whose prompts are too long; these are counted."""

    def __init__(self, batches: Iterable[pa.RecordBatch], fits: Fits) -> None:
        self._batches = batches
        self._fits = fits
        self.counts: Counter[str] = Counter()
        """Number of rows yielded so far, by environment."""
        self.num_too_long = 0
        """Number of rows left out so far."""

    @property
    def num_rows(self) -> int:
        """Number of rows yielded so far."""
        return self.counts.total()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches without the rows that do not fit."""
        for batch in self._batches:
            kept = batch.filter(pa.array([self._fits(row) for row in batch.to_pylist()], pa.bool_()))
            self.counts.update(kept["environment"].to_pylist())
            self.num_too_long += batch.num_rows - kept.num_rows
            yield kept


def rows_to_train_on(tables: Sequence[Rows]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `rl_rows` in batches of `TRAINING_SCHEMA`."""
    for table in tables:
        yield from map(training_rows, table.batches(TRAINING_COLUMNS))


def prompt_fits(environments: Environments, tokenizer: ChatTokenizer, max_tokens: int) -> Fits:
    """Return a function that checks whether a row's prompt, as the policy gets it, has at most `max_tokens` tokens.

    Tool schemas that only an open server can list are not counted; engines check the whole prompt.
    """
    dialects = {name: one.turn_dialect.bound(tokenizer, is_chat=False) for name, one in environments.items()}

    def fits(row: Mapping[str, Any]) -> bool:
        task = Task.from_row(row)
        environment = find_environment(environments, task.environment)
        messages = environment.prompt_messages(task)
        if messages is None:
            # Messages that only an open episode can give are checked when it begins.
            return True
        prompt = dialects[task.environment].tool_prompt(messages, environment.known_tools)
        return len(tokenizer.prompt_ids(*prompt)) <= max_tokens

    return fits


def validation_questions(tables: Sequence[Rows], number: int, seed: int) -> tuple[list[dict[str, Any]], int]:
    """Return up to `number` held-out questions, and the number of all held-out questions.

    Questions are taken in turn from every pair of domain and data set, so that all are represented, in an order drawn
    from the seed; the order of the table does not matter.
    """
    pools: dict[tuple[str, str], list[str]] = {}
    for row in _held_out(tables, ("question_key", "domain", "dataset")):
        pools.setdefault((row["domain"], row["dataset"]), []).append(row["question_key"])
    drawn = [heapq.nsmallest(number, pools[name], key=lambda key: _draw(seed, key)) for name in sorted(pools)]
    turns = [key for key in chain.from_iterable(zip_longest(*drawn)) if key is not None][:number]
    place = {key: index for index, key in enumerate(turns)}
    chosen = [row for row in _held_out(tables, (*TASK_COLUMNS, "answers")) if row["question_key"] in place]
    return sorted(chosen, key=lambda row: place[row["question_key"]]), sum(map(len, pools.values()))


def payload_batches(tables: Sequence[Rows], is_read: Mapping[str, bool]) -> Iterator[pa.RecordBatch]:
    """Yield the payloads of tasks from tables of `questions`, in batches of `PAYLOAD_SCHEMA`.

    `is_read` maps the keys of the tasks to whether their payloads are read; other payloads are empty.
    """
    wanted = pa.array(sorted(is_read), pa.string())
    for table in tables:
        for batch in table.batches(PAYLOAD_SCHEMA.names):
            kept = batch.filter(pc.is_in(batch["question_key"], wanted))
            shown = pa.array([is_read[key] for key in kept["question_key"].to_pylist()], pa.bool_())
            payloads = pc.if_else(shown, kept["payload"], "{}")
            yield pa.RecordBatch.from_arrays([kept["question_key"], payloads], schema=PAYLOAD_SCHEMA)


def _held_out(tables: Iterable[Rows], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for row in table.rows((*columns, "split")):
            if row["split"] == "heldout":
                yield row


def _draw(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{key}".encode()).digest()
