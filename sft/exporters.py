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

from treadle.core.runs.stage import Rows
from treadle.core.schemas import SFT_ROWS
from treadle.core.store.exported import new_folder, write_facts

DATASET_NAME = "sft"
"""Name of the data set in `dataset_info.json`."""
SIDECAR_FILE = "rows.jsonl"
_CALLS = ("calls_requested", "calls_executed")
_ORIGIN = ("question_key", "rollout_key", "operator", "dataset", *_CALLS, "tools")
_TEXT = ("messages",)
_PART_ROWS = 100_000
_NO_MASKS = "no loss masks: a trainer also trains on tool results, and LLaMA-Factory on every assistant message"
_NO_IDS = "no token ids: the text is tokenised again, and its ids may differ from those of the rollout"


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """An export format."""

    name: str
    meaning: str
    columns: tuple[str, ...]
    """Columns of `sft_rows` that it reads."""
    write: Callable[[Iterator[pa.RecordBatch], Path], None]
    """Function that writes the rows into a folder."""
    limitations: tuple[str, ...] = ()
    """Descriptions of what the rows have and the export lacks."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export."""

    folder: Path
    format: ExportFormat
    num_rows: int
    num_text_mode: int
    """Number of rows without token ids, which were made in text mode."""


def export_rows(
    rows: Rows, name: str, target: Path, *, origin: Mapping[str, str], replace: bool = False
) -> ExportResult:
    """Write a table of `sft_rows` in the format `name` into a new folder `target`; `origin` is added to `export.json`.

    Raises ConfigError if `target` cannot be used (see `new_folder`), ArtifactError if the rows cannot be read,
    StorageError if writing fails.
    """
    chosen = FORMATS[name]
    counts = _Counts()
    columns = list(dict.fromkeys((*_ORIGIN, "num_tokens", *chosen.columns)))
    with new_folder(target, replace=replace) as folder:
        with (folder / SIDECAR_FILE).open("wb") as side_car:
            chosen.write(counts.watch(rows.batches(columns), side_car), folder)
        facts = {
            "kind": rows.kind,
            "format": chosen.name,
            "digest": rows.digest,
            "num_rows": counts.num_rows,
            "num_text_mode": counts.num_text_mode,
            "limitations": chosen.limitations,
        }
        write_facts(folder, {**facts, **origin})
    return ExportResult(target, chosen, counts.num_rows, counts.num_text_mode)


class _Counts:
    """A pass-through counter of rows, which also writes their origins to the side-car file in the same order."""

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


def messages_of(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the conversation of a row."""
    messages: list[dict[str, str]] = orjson.loads(row["messages"])
    return messages


def _alternating(row: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return the system message, and (role, content) of the others so that they alternate, as LLaMA-Factory demands.

    They begin with a user message and end with the assistant's. Messages between two turns are joined by a blank line.
    """
    messages = messages_of(row)
    num_system = next((place for place, one in enumerate(messages) if one["role"] != "system"), len(messages))
    system = "\n\n".join(message["content"] for message in messages[:num_system])
    joined: list[tuple[str, str]] = []
    for message in messages[num_system:]:
        role, content = message["role"], message["content"]
        if not joined and role == "assistant":
            joined.append(("user", ""))
        before = joined[-1][0] if joined else "assistant"
        if (before == "assistant") != (role == "assistant"):
            joined.append((role if role in ("assistant", "tool") else "user", content))
        else:
            joined[-1] = (before if before == role else "user", f"{joined[-1][1]}\n\n{content}")
    return system, joined


_TAGS = {"user": "human", "tool": "observation", "assistant": "gpt"}


def _sharegpt(row: Mapping[str, Any]) -> dict[str, Any]:
    system, turns = _alternating(row)
    return {"conversations": [{"from": _TAGS[role], "value": text} for role, text in turns], "system": system}


def _alpaca(row: Mapping[str, Any]) -> dict[str, Any]:
    system, turns = _alternating(row)
    texts = [text for _, text in turns]
    *history, (asked, answer) = zip(texts[::2], texts[1::2], strict=True)
    return {"instruction": system, "input": asked, "output": answer, "history": [list(pair) for pair in history]}


def _openai(row: Mapping[str, Any]) -> dict[str, Any]:
    # The API takes a tool's message only as the answer to a call of its own, which rows do not have.
    messages = [{**one, "role": "user" if one["role"] == "tool" else one["role"]} for one in messages_of(row)]
    return {"messages": messages}


_DATASET_INFO: Mapping[str, dict[str, Any]] = {
    "sharegpt": {
        "file_name": "sharegpt.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "system": "system"},
        "tags": {
            "role_tag": "from",
            "content_tag": "value",
            **{f"{role}_tag": _TAGS[role] for role in ("user", "assistant")},
            "observation_tag": _TAGS["tool"],
        },
    },
    "alpaca": {
        "file_name": "alpaca.jsonl",
        "formatting": "alpaca",
        "columns": {"prompt": "input", "response": "output", "system": "instruction", "history": "history"},
    },
}
"""Column mappings; without the system column LLaMA-Factory would add its template's own system message."""


def _lines(
    name: str, record: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> Callable[[Iterator[pa.RecordBatch], Path], None]:
    def write(batches: Iterator[pa.RecordBatch], folder: Path) -> None:
        with (folder / f"{name}.jsonl").open("wb") as file:
            for batch in batches:
                for row in batch.select(_TEXT).to_pylist():
                    file.write(orjson.dumps(record(row)) + b"\n")
        if name in _DATASET_INFO:
            info = orjson.dumps(
                {DATASET_NAME: _DATASET_INFO[name]}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            )
            (folder / "dataset_info.json").write_bytes(info)

    return write


# Hugging Face: parquet with a card, which every version of `datasets` reads.

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_HF_SCHEMA = pa.schema(
    [
        ("messages", _MESSAGES),
        ("input_ids", pa.list_(pa.int32())),
        ("attention_mask", pa.list_(pa.int8())),
        ("labels", pa.list_(pa.int64())),
        *((name, pa.string()) for name in ("id", "tid", "operator", "source")),
        *((name, pa.int32()) for name in _CALLS),
        # Trainers read a column `tools` as schemas for the chat template.
        ("calls_by_tool", SFT_ROWS.schema.field("tools").type),
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
made in text mode. `messages` is the same as text. `id` is the question, `tid` the trajectory, `operator` what produced
it, `source` its data set, `calls_by_tool` the numbers of its calls.

Read it with `datasets.load_dataset(folder)`.
"""


def _write_hf(batches: Iterator[pa.RecordBatch], folder: Path) -> None:
    import pyarrow.parquet as pq

    (folder / "README.md").write_text(_CARD, encoding="utf-8")
    (folder / "data").mkdir()
    for number, part in enumerate(_parts(batches)):
        with pq.ParquetWriter(folder / "data" / f"train-{number:05d}.parquet", _HF_SCHEMA, compression="zstd") as file:
            for batch in part:
                file.write_batch(_hf_batch(batch))


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


def _hf_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    ids = batch["input_ids"]
    offsets = pc.subtract(ids.offsets, ids.offsets[0])
    ones = pa.array(np.ones(offsets[-1].as_py(), np.int8))
    columns: list[Any] = [
        pa.array([messages_of(row) for row in batch.select(_TEXT).to_pylist()], _MESSAGES),
        ids,
        pa.ListArray.from_arrays(offsets, ones),
        batch["labels"].cast(pa.list_(pa.int64())),
        *(batch[name] for name in ("question_key", "rollout_key", "operator", "dataset")),
        *(batch[name] for name in (*_CALLS, "tools")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_HF_SCHEMA)


def _text_format(name: str, meaning: str, record: Callable[[Mapping[str, Any]], dict[str, Any]]) -> ExportFormat:
    return ExportFormat(name, meaning, _TEXT, _lines(name, record), (_NO_MASKS, _NO_IDS))


_HF = "a Hugging Face data set in parquet: messages, input_ids, labels"
FORMATS: Mapping[str, ExportFormat] = {
    one.name: one
    for one in (
        _text_format("sharegpt", "LLaMA-Factory: conversations, with dataset_info.json", _sharegpt),
        _text_format(
            "alpaca",
            "LLaMA-Factory: instruction (the system message), input, output, history, with dataset_info.json",
            _alpaca,
        ),
        _text_format("openai", "messages of OpenAI's fine-tuning API", _openai),
        ExportFormat("hf", _HF, (*_TEXT, "input_ids", "labels"), _write_hf),
    )
}
"""Export formats by name."""
