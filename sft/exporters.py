"""Export fine-tuning rows for other trainers: LLaMA-Factory's text formats, OpenAI messages, a Hugging Face data set.

Rows are streamed in their order. The text formats have neither token ids nor masks. `ExportFormat.limitations`, the
export itself and docs/behaviour/sft.md describe the consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa

from treadle.core.errors import ConfigError
from treadle.core.runs.stage import Rows
from treadle.core.store.exported import new_folder, write_facts
from treadle.environments.rollouts.tables import TOOL_COUNTS
from treadle.sft.llamafactory_rows import TAGS, alpaca_record, sharegpt_record
from treadle.sft.openai_rows import openai_message, openai_record, tool_of
from treadle.sft.row_text import COLUMNS, RowText, continues_trimmed

DATASET_NAME = "sft"
"""Name of the data set in `dataset_info.json`."""
SIDECAR_FILE = "rows.jsonl"
_CALLS = ("calls_requested", "calls_executed")
_ORIGIN = ("question_key", "rollout_key", "operator", "dataset", *_CALLS, "tools")
_PART_ROWS = 100_000
_RESULTS_INSIDE = "tool results of tags inside turns, which trainers train on; --results apart makes them messages"
_NO_MASKS = "no loss masks: LLaMA-Factory trains on every message of the assistant and every function call"
_NO_IDS = "no token ids: the text is tokenised again, and its ids may differ from those of the rollout"


_Write = Callable[[Iterator[pa.RecordBatch], Path, bool], None]


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """An export format."""

    name: str
    meaning: str
    columns: tuple[str, ...]
    """Columns of `sft_rows` that the format needs."""
    write: _Write
    """Function that writes batches of rows into a folder; its last argument is `results_apart` of `export_rows`."""
    limitations: tuple[str, ...] = ()
    """Sentences about limits of the format that matter for training."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export."""

    folder: Path
    format: ExportFormat
    num_rows: int
    num_text_mode: int
    """Number of rows without token ids, which were made in text mode."""
    limitations: tuple[str, ...]


def export_rows(
    rows: Rows,
    name: str,
    target: Path,
    *,
    origin: Mapping[str, str],
    results_apart: bool = False,
    replace: bool = False,
) -> ExportResult:
    """Write a table of `sft_rows` in the format `name` into a new folder `target`; `origin` is added to `export.json`.

    With `results_apart`, tool results inside a turn become separate messages.

    Raises ConfigError if `target` cannot be used (see `new_folder`), or if a format without masks would train on the
    same text in two rows; ArtifactError if the rows cannot be read; StorageError if writing fails.
    """
    chosen = FORMATS[name]
    limitations = tuple(one for one in chosen.limitations if not (results_apart and one == _RESULTS_INSIDE))
    counts = _Counts()
    columns = list(dict.fromkeys((*_ORIGIN, "num_tokens", *chosen.columns)))
    with new_folder(target, replace=replace) as folder:
        with (folder / SIDECAR_FILE).open("wb") as side_car:
            chosen.write(counts.watch(rows.batches(columns), side_car), folder, results_apart)
        facts = {
            "kind": rows.kind,
            "format": chosen.name,
            "digest": rows.digest,
            "num_rows": counts.num_rows,
            "num_text_mode": counts.num_text_mode,
            "results": "apart" if results_apart else "inside",
            "limitations": limitations,
        }
        write_facts(folder, {**facts, **origin})
    return ExportResult(target, chosen, counts.num_rows, counts.num_text_mode, limitations)


class _Counts:
    """Counter that passes rows on, and also writes the origin of each row to a side-car file, in the same order."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_text_mode = 0

    def watch(self, batches: Iterator[pa.RecordBatch], side_car: BinaryIO) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.select([*_ORIGIN, "num_tokens"]).to_pylist():
                self.num_rows += 1
                self.num_text_mode += not row["num_tokens"]
                side_car.write(orjson.dumps(_origin_of(row)) + b"\n")
            yield batch


def _origin_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row["question_key"],
        "tid": row["rollout_key"],
        "operator": row["operator"],
        "source": row["dataset"],
        "counts": {
            "total": row["calls_requested"],
            "executed": row["calls_executed"],
            "tools": row["tools"],
        },
    }


# LLaMA-Factory and OpenAI: one JSON line per row.

_DATASET_INFO: Mapping[str, dict[str, Any]] = {
    "sharegpt": {
        "file_name": "sharegpt.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "system": "system", "tools": "tools"},
        "tags": {
            "role_tag": "from",
            "content_tag": "value",
            **{f"{role}_tag": TAGS[role] for role in ("user", "assistant", "function")},
            "observation_tag": TAGS["tool"],
        },
    },
    "alpaca": {
        "file_name": "alpaca.jsonl",
        "formatting": "alpaca",
        "columns": {
            "prompt": "input",
            "response": "output",
            "system": "instruction",
            "history": "history",
            "tools": "tools",
        },
    },
}
"""Column mappings; without the system column LLaMA-Factory would add its template's own system message."""


_TEXT_CARD = """---
configs:
- config_name: default
  data_files: {name}.jsonl
---

# Fine-tuning rows

Trajectories of a tool-using agent as text, in the format {name}. `rows.jsonl` has the origin of each row, in the same
order.

Read it with `datasets.load_dataset(folder)` or `pandas.read_json(folder + "/{name}.jsonl", lines=True)`.
"""


def _lines(name: str, record: Callable[[RowText], dict[str, Any]]) -> _Write:
    def write(batches: Iterator[pa.RecordBatch], folder: Path, results_apart: bool) -> None:
        (folder / "README.md").write_text(_TEXT_CARD.format(name=name), encoding="utf-8")
        with (folder / f"{name}.jsonl").open("wb") as file:
            for batch in batches:
                _check_contexts(batch, name)
                for text in _texts(batch, results_apart):
                    file.write(orjson.dumps(record(text)) + b"\n")
        if name in _DATASET_INFO:
            info = orjson.dumps(
                {DATASET_NAME: _DATASET_INFO[name]}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            )
            (folder / "dataset_info.json").write_bytes(info)

    return write


def _check_contexts(batch: pa.RecordBatch, name: str) -> None:
    for row in batch.select(["rollout_key", "messages"]).to_pylist():
        if continues_trimmed(row):
            raise ConfigError(
                f"row {row['rollout_key']} continues a trimmed context: {name} has no masks, so the turns before it "
                "would be trained on twice; export the rows as hf"
            )


def _texts(batch: pa.RecordBatch, results_apart: bool) -> Iterator[RowText]:
    for row in batch.select(COLUMNS).to_pylist():
        yield RowText.of(row, results_apart=results_apart)


# Hugging Face: parquet with a card, which every version of `datasets` reads.

_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
_MESSAGES = pa.list_(
    pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("reasoning_content", pa.string()),
            ("tool_calls", pa.list_(_CALL)),
            ("tool_call_id", pa.string()),
        ]
    )
)
_HF_SCHEMA = pa.schema(
    [
        ("messages", _MESSAGES),
        ("tools", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("attention_mask", pa.list_(pa.int8())),
        ("labels", pa.list_(pa.int64())),
        *((name, pa.string()) for name in ("id", "tid", "operator", "source")),
        *((name, pa.int32()) for name in _CALLS),
        # Trainers read a column `tools` as schemas for the chat template.
        ("calls_by_tool", TOOL_COUNTS),
    ]
)
_CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---

# Fine-tuning rows

Trajectories of a tool-using agent. `input_ids` and `labels` are the token ids that the model read and wrote, `labels`
-100 if there is no loss (the prompt, results of tools, messages of the environment); both are empty in rows that were
made in text mode. `messages` is the same as text, with native tool calls as chat services have them; `tools` is JSON
text, `[]` for none. `id` is the question, `tid` the trajectory, `operator` what produced it, `source` its data set,
`calls_by_tool` the numbers of its calls.

Read it with `datasets.load_dataset(folder)`.
"""


def _write_hf(batches: Iterator[pa.RecordBatch], folder: Path, results_apart: bool) -> None:
    import pyarrow.parquet as pq

    (folder / "README.md").write_text(_CARD, encoding="utf-8")
    (folder / "data").mkdir()
    for number, part in enumerate(_parts(batches)):
        with pq.ParquetWriter(folder / "data" / f"train-{number:05d}.parquet", _HF_SCHEMA, compression="zstd") as file:
            for batch in part:
                file.write_batch(_hf_batch(batch, results_apart))


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Split the batches into runs of about 100,000 rows, one per file."""
    waiting: list[pa.RecordBatch] = []

    def part() -> Iterator[pa.RecordBatch]:
        num_rows = 0
        while num_rows < _PART_ROWS and (batch := waiting.pop() if waiting else next(batches, None)) is not None:
            num_rows += batch.num_rows
            yield batch

    first = next(batches, None)
    while first is not None:
        waiting.append(first)
        yield part()
        first = next(batches, None)


def _hf_batch(batch: pa.RecordBatch, results_apart: bool) -> pa.RecordBatch:
    import pyarrow.compute as pc

    texts = list(_texts(batch, results_apart))
    ids = batch["input_ids"]
    offsets = pc.subtract(ids.offsets, ids.offsets[0])
    ones = pa.array(np.ones(offsets[-1].as_py(), np.int8))
    columns: list[Any] = [
        pa.array([list(map(openai_message, text.messages)) for text in texts], _MESSAGES),
        pa.array([orjson.dumps([tool_of(tool) for tool in text.tools]).decode() for text in texts], pa.string()),
        ids,
        pa.ListArray.from_arrays(offsets, ones),
        batch["labels"].cast(pa.list_(pa.int64())),
        *(batch[name] for name in ("question_key", "rollout_key", "operator", "dataset")),
        *(batch[name] for name in (*_CALLS, "tools")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_HF_SCHEMA)


def _text_format(name: str, meaning: str, record: Callable[[RowText], dict[str, Any]]) -> ExportFormat:
    return ExportFormat(name, meaning, COLUMNS, _lines(name, record), (_RESULTS_INSIDE, _NO_MASKS, _NO_IDS))


_HF = "a Hugging Face data set in parquet: messages, tools, input_ids, labels"
FORMATS: Mapping[str, ExportFormat] = {
    one.name: one
    for one in (
        _text_format("sharegpt", "LLaMA-Factory: conversations, with dataset_info.json", sharegpt_record),
        _text_format(
            "alpaca",
            "LLaMA-Factory: instruction (the system message), input, output, history, with dataset_info.json",
            alpaca_record,
        ),
        _text_format("openai", "messages and tools of OpenAI's fine-tuning API", openai_record),
        ExportFormat("hf", _HF, (*COLUMNS, "input_ids", "labels"), _write_hf),
    )
}
"""Export formats by name."""
