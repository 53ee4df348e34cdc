"""Choose the saved policy of a training, the states to delete, and the held-out questions for validation."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Literal

from treadle.agent.contract import TASK_COLUMNS
from treadle.core.runs.stage import Rows
from treadle.rl.training.events import Validation

Rule = Literal["last", "best"]

_ANSWERED_COLUMNS = (*TASK_COLUMNS, "answers")


def choose_step(rule: Rule, saved: Collection[int], validations: Mapping[int, Validation]) -> int:
    """Return the step whose saved policy becomes the checkpoint; `saved` is not empty.

    `best` takes the step with the highest correctness in validation; ties go to the most efficient one, then to the
    latest. Steps without a validation, or with no scored answer in it, are skipped. If none is left, or the rule is
    `last`, the last step is returned.
    """
    validated = [step for step in saved if step in validations and validations[step].overall.correctness is not None]
    if rule == "last" or not validated:
        return max(saved)
    return max(validated, key=lambda step: _rank_key(validations[step]))


def _rank_key(validation: Validation) -> tuple[float, float, int]:
    figures = validation.overall
    return figures.correctness or 0.0, figures.efficiency or 0.0, validation.step


def superseded(rule: Rule, saved: Collection[int], validations: Mapping[int, Validation]) -> set[int]:
    """Return the steps whose states can be deleted: all but the newest, for resuming, and the chosen one."""
    return set(saved) - {max(saved), choose_step(rule, saved, validations)} if saved else set()


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
    chosen = [row for row in _held_out(tables, _ANSWERED_COLUMNS) if row["question_key"] in place]
    return sorted(chosen, key=lambda row: place[row["question_key"]]), sum(map(len, pools.values()))


def _held_out(tables: Iterable[Rows], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for row in table.rows((*columns, "split")):
            if row["split"] == "heldout":
                yield row


def _draw(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{key}".encode()).digest()
