"""Select the pairs to train on and those to hold out, and store them for the engine."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from treadle.core.engines.training import write_rows
from treadle.core.errors import ConfigError, StageFailed
from treadle.core.runs.stage import Rows
from treadle.core.store.buckets import draw
from treadle.rl.dpo.config import DpoOptions, DpoSettings

_IDS, _MASK = pa.list_(pa.int32()), pa.list_(pa.int8())
ENGINE_ROWS = pa.schema(
    [
        ("prompt_ids", _IDS),
        *((f"{side}_{name}", kind) for side in ("chosen", "rejected") for name, kind in
          (("ids", _IDS), ("mask", _MASK), ("turns", _IDS))),
        ("held_out", pa.bool_()),
    ]
)  # fmt: skip
"""Columns of the rows that the engine reads."""
_READ = ("pair_key", "question_key", "hidden", "tokenizer_digest", *ENGINE_ROWS.names[:-1])
_BATCH_ROWS = 256


@dataclass(slots=True)
class PairSelection:
    """Pairs that are trained on or held out, by the index of their row.

    Attributes:
        train: Indices of the pairs to train on.
        held_out: Indices of the pairs to hold out.
        longest: Number of tokens of the longest side with its prompt.
        num_target_tokens: Number of tokens that count in the loss, in the pairs to train on.
        tokenizers: Digests of the tokenizers that the pairs were made with.
        prompt: Prompt of the first pair.
        left_out: Reason -> number of pairs left out.
    """

    train: frozenset[int]
    held_out: frozenset[int]
    longest: int = 0
    num_target_tokens: int = 0
    tokenizers: set[str] = field(default_factory=set)
    prompt: list[int] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def split_pairs(tasks: Sequence[str], share: float, how: str, seed: int) -> frozenset[int]:
    """Return the indices of the pairs to hold out; `tasks` has the task of each pair.

    With `how` "task", all pairs of randomly drawn tasks are held out, until they reach the share; at least one task is
    left to train on. With "first", the first pairs are held out, regardless of their tasks.
    """
    count = int(len(tasks) * share)
    if not share or len(tasks) < 2:
        return frozenset()
    if how == "first":
        return frozenset(range(count))
    sizes = Counter(tasks)
    ordered = sorted(sizes, key=lambda task: (draw(seed, "holdout", task), task))
    chosen, num_pairs = set[str](), 0
    for task in ordered[:-1]:
        if num_pairs >= max(count, 1):
            break
        chosen.add(task)
        num_pairs += sizes[task]
    return frozenset(place for place, task in enumerate(tasks) if task in chosen)


class PairStore:
    """Reader of the pairs of an instance, which selects them and stores them for the engine."""

    def __init__(
        self, settings: DpoSettings, tables: Sequence[Rows], address: str, window_tokens: int | None = None
    ) -> None:
        """Set up a reader; `window_tokens` is the context window of the model, None if it is not known."""
        self._settings = settings
        self._window_tokens = window_tokens
        self._options: DpoOptions = settings.options
        self._tables = tables
        self._address = address

    def select(self) -> PairSelection:
        """Return the pairs to use.

        Raises StageFailed if no pair is left, and ConfigError if pairs with hidden information would train a policy.
        """
        places, tasks, left_out = [], [], Counter[str]()
        for place, row in enumerate(self._rows(("pair_key", *_READ[1:]))):
            if row["hidden"] and not self._settings.is_critic:
                raise ConfigError(
                    f"{self._address}: these pairs state hidden information, which only dpo@critic may be trained on; "
                    "bind pairs of turns, or preferences@dialogue"
                )
            if self._options.max_tokens is not None and _length(row) > self._options.max_tokens:
                left_out["too_long"] += 1
            elif self._window_tokens is not None and _length(row) > self._window_tokens:
                left_out["over_window"] += 1
            else:
                places.append((place, row["pair_key"]))
                tasks.append(row["question_key"])
        held_out = split_pairs(tasks, self._options.holdout_share, self._options.holdout, self._settings.seed)
        train = [pair for number, pair in enumerate(places) if number not in held_out]
        if self._options.max_rows is not None and len(train) > self._options.max_rows:
            left_out["over_limit"] = len(train) - self._options.max_rows
            seed = self._settings.seed
            train = heapq.nsmallest(
                self._options.max_rows, train, key=lambda pair: (draw(seed, "pairs", pair[1]), pair)
            )
        if not train:
            why = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
            raise StageFailed(f"{self._address}: no pair is left to train on ({why or 'all are held out'})")
        kept = frozenset(places[number][0] for number in held_out)
        return PairSelection(frozenset(place for place, _ in train), kept, left_out=left_out)

    def store(self, path: Path, selection: PairSelection) -> None:
        """Write the selected pairs for the engine, and fill in the fields of `selection` that depend on their rows."""
        write_rows(path, ENGINE_ROWS, self._batches(selection))

    def _batches(self, selection: PairSelection) -> Iterator[pa.RecordBatch]:
        chunk: list[dict[str, Any]] = []
        for place, row in enumerate(self._rows(_READ)):
            is_held_out = place in selection.held_out
            if not is_held_out and place not in selection.train:
                continue
            selection.longest = max(selection.longest, _length(row))
            selection.tokenizers.add(row["tokenizer_digest"])
            selection.prompt = selection.prompt or list(row["prompt_ids"])
            if not is_held_out:
                selection.num_target_tokens += sum(row["chosen_turns"]) + sum(row["rejected_turns"])
            chunk.append({**{name: row[name] for name in ENGINE_ROWS.names[:-1]}, "held_out": is_held_out})
            if len(chunk) == _BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(chunk, ENGINE_ROWS)
                chunk = []
        if chunk:
            yield pa.RecordBatch.from_pylist(chunk, ENGINE_ROWS)

    def _rows(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        return (row for table in self._tables for row in table.rows(columns))


def _length(row: Mapping[str, Any]) -> int:
    return len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"]))
