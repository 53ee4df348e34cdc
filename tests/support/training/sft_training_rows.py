"""Short fine-tuning rows, made with the encoding of `sft_rows`: with none, one or several results of tools."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from treadle.core.chat import ChatTokenizer
from treadle.datagen.sft_rows.encoding import RowEncoder, Turns
from treadle.datagen.sft_rows.tables import SFT_ROWS

SYSTEM = "Think, use the tools, answer."
TOWNS = ("Arlen", "Bovik", "Casta", "Dorrin", "Elmet", "Farrow", "Gisel", "Hadow")


def make_row(tokenizer: ChatTokenizer, index: int, num_results: int) -> dict[str, Any]:
    """One row: `input_ids`, `labels` and their counts."""
    town = TOWNS[index % len(TOWNS)]
    prompt = tokenizer.prompt_ids(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Who founded {town}?"}]
    )
    output: list[int] = []
    spans = []
    for call in range(num_results):
        output += tokenizer.encode(f"<think>Look it up.</think><search>{town} founder {call}</search>")
        result = tokenizer.encode(f"<result>{town} was founded by {town[::-1].title()} in {1200 + index}.</result>")
        spans.append((len(output), len(output) + len(result)))
        output += result
    output += tokenizer.encode(f"<think>Now I know.</think><answer>\\boxed{{{town[::-1].title()}}}</answer>")
    return RowEncoder.of(tokenizer, mask_results=True).columns(prompt, Turns([], output, spans, spans))


def make_rows(tokenizer: ChatTokenizer, number: int) -> list[dict[str, Any]]:
    """Rows with 0, 1, 2, 0, 1, 2, ... results."""
    return [make_row(tokenizer, index, index % 3) for index in range(number)]


def as_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return the rows with the id columns that `sft_rows` has."""
    schema = pa.schema([SFT_ROWS.schema.field(name).remove_metadata() for name in rows[0]])
    return pa.RecordBatch.from_pylist(rows, schema=schema)
