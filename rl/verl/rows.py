"""Convert questions and `rl_rows` into rows of verl's schema and of Treadle's own training schema.

verl's schema has one row per question with data_source, prompt, ability, reward_model and extra_info. `rl/verl/data.py`
writes its files. Documented in docs/behaviour/selection.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from treadle.core.errors import DataError
from treadle.rl.selection.tables import RL_ROWS

UNSCORED = "task"
"""Domain of tasks that the environment scores, unless they name a scorer."""
_OTHERS = "treadle_"
DATA_SOURCES: Mapping[str, str] = {
    "math": "math_effi_rl",
    "qa": "qa_effi_rl",
    "qa_characters": "qa_characters_effi_rl",
    "choice": "choice_effi_rl",
    UNSCORED: f"{_OTHERS}{UNSCORED}",
}
"""Answer rule -> `data_source`, from which a verl reward function chooses the rule; see `data_source_of`."""
VERL_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
VERL_SCHEMA = pa.schema([pa.field(name, RL_ROWS.schema.field(name).type) for name in VERL_COLUMNS])
"""Schema of a file for verl; every column has a type, so that files can be concatenated."""
TRAINING_SCHEMA = pa.schema(
    [
        ("question_key", pa.string()),
        ("question", pa.string()),
        ("choices", pa.list_(pa.string())),
        ("answers", pa.list_(pa.string())),
        ("domain", pa.string()),
        ("dataset", pa.string()),
        ("score_tool", pa.float64()),
        ("score_corr", pa.float64()),
        ("rank", pa.int32()),
        ("format", pa.string()),
        ("scorer", pa.string()),
        ("environment", pa.string()),
    ]
)
"""Schema of the rows that an engine reads; `question` is without its options."""
_NESTED = ("question", "choices", "answers")
"""Columns of TRAINING_SCHEMA that are inside objects of `rl_rows`."""
TRAINING_COLUMNS = (
    *(name for name in TRAINING_SCHEMA.names if name not in _NESTED),
    "reward_model",
    "extra_info",
)
"""Columns of `rl_rows` that `training_rows` needs."""
_MAX_TEXTS = 1_000


def training_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of `rl_rows` (with `TRAINING_COLUMNS`) to `TRAINING_SCHEMA`, in the same order."""
    info = batch["extra_info"]
    columns = {
        **{name: batch[name] for name in TRAINING_COLUMNS if name in TRAINING_SCHEMA.names},
        "question": info.field("question"),
        "choices": info.field("choices"),
        "answers": batch["reward_model"].field("ground_truth"),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in TRAINING_SCHEMA.names], schema=TRAINING_SCHEMA)


def validation_rows(questions: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Convert rows of `questions` to `TRAINING_SCHEMA`; objectives and ranks are 0."""
    unranked = {"score_tool": 0.0, "score_corr": 0.0, "rank": 0}
    rows = [{name: question.get(name) for name in TRAINING_SCHEMA.names} | unranked for question in questions]
    return pa.RecordBatch.from_pylist(rows, TRAINING_SCHEMA)


def verl_row(
    question: Mapping[str, Any],
    messages: Sequence[Mapping[str, str]],
    *,
    index: int,
    split: str = "train",
    phase: int = 0,
    score_tool: float = 0.0,
    score_corr: float = 0.0,
    rank: int | None = 0,
) -> dict[str, Any]:
    """Return verl's columns for a row of `questions` with these prompt messages.

    `split` is `train` or `valid`; `index` must be unique in a file.
    """
    domain = question["domain"]
    return {
        "data_source": data_source_of(question.get("scorer") or domain),
        "prompt": [{"content": message["content"], "role": message["role"]} for message in messages],
        "ability": domain,
        "reward_model": {"ground_truth": gold_answers(question["answers"]), "style": "rule"},
        "extra_info": {
            "index": index,
            "need_tools_kwargs": False,
            "question": question["question"],
            "split": split,
            "id": question["question_key"],
            "source": question["dataset"],
            "stage": phase,
            "score_tool": score_tool,
            "score_corr": score_corr,
            "rank": rank,
            "choices": list(question["choices"]),
        },
    }


def data_source_of(scorer: str) -> str:
    """Return the `data_source` of rows with this scorer; verl's reward functions know only those of answer rules."""
    return DATA_SOURCES.get(scorer, f"{_OTHERS}{scorer}")


def gold_answers(value: object) -> list[str]:
    """Return gold answers as a list of strings; a scalar becomes one string, no answer one empty string.

    Raises DataError for anything but text, numbers and lists of these.
    """
    return texts_of(value, "gold answer") or [""]


def texts_of(value: object, what: str) -> list[str]:
    """Return a scalar, or each item of a list, as text; raise DataError, naming `what`, for other types."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        raise DataError(f"{what} {str(value)[:60]!r} is an object; give text, a number or a list of them")
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        return [_text(value, what)]
    items = [_text(item, what) for item in value]
    if len(items) > _MAX_TEXTS:
        raise DataError(f"{len(items):,} values as {what}; at most {_MAX_TEXTS:,} are allowed")
    return items


def _text(value: object, what: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{what} {value} is not a finite number")
    if isinstance(value, bool | int | float):
        return str(value)
    raise DataError(f"{what} {str(value)[:60]!r} is of type {type(value).__name__}; give text or a number")


def domain_of(data_source: str, domains: Mapping[str, str] | None = None) -> str:
    """Return the answer rule of a `data_source`, Treadle's own or one in `domains`; raise DataError if unknown."""
    known = {**{source: domain for domain, source in DATA_SOURCES.items()}, **(domains or {})}
    if data_source not in known:
        if data_source.startswith(_OTHERS):
            return data_source.removeprefix(_OTHERS)
        raise DataError(
            f"data source {data_source!r} has no domain; map it to math, qa or choice (known: {', '.join(known)})"
        )
    return known[data_source]
