"""Write the training rows of a file of questions as parquet, and summarize what was written."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from treadle.core.errors import DataError
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.untrusted.input_files import read_rows
from treadle.environments.planning.prompts import instructions
from treadle.formats.afm.rows import TOOL_SETS, Prepared, ToolSet, prepared, schema_of

_ROWS_AT_ONCE = 1_024
_CARD = """---
configs:
- config_name: default
  data_files: "data/*.parquet"
---

# Rows for reinforcement learning

Questions as Agent Foundation Models and GAP train on them: `prompt` with instructions, `reward_model.ground_truth`
with the accepted answers, and in `extra_info` the index and the tools.

Read it with `datasets.load_dataset(folder)`, `pandas.read_parquet(folder + "/data")` or
`polars.read_parquet(folder + "/data")`; verl reads the file in `data`.
"""


@dataclass(slots=True)
class Summary:
    """Summary of an export: number of rows, their sizes in characters, and rows left out with their reasons."""

    file: str
    num_rows: int = 0
    question_chars: int = 0
    answer_chars: int = 0
    num_answers: int = 0
    refused: list[str] = field(default_factory=list)

    def count(self, row: Prepared) -> None:
        """Count a row that was written."""
        self.num_rows += 1
        self.question_chars += len(row.question)
        self.answer_chars += sum(len(str(answer)) for answer in row.truth.answers)
        self.num_answers += len(row.truth.answers)

    def lines(self) -> list[str]:
        """Return the summary as lines for people."""
        questions = self.question_chars / self.num_rows
        answers = self.answer_chars / max(1, self.num_answers)
        lines = [
            f"{self.file}: {self.num_rows:,} rows; mean characters: questions {questions:.1f}, answers {answers:.1f}"
        ]
        if self.refused:
            lines.append(f"{len(self.refused):,} rows left out:")
            lines += [f"  {line}" for line in self.refused[:3]]
        return lines


def prepare_rows(
    source: Path,
    target: Path,
    tools: ToolSet,
    prompt: str,
    *,
    filter_none: bool = False,
    limit: int | None = None,
    replace: bool = False,
) -> Summary:
    """Write `<target>/data/<name of source>.parquet`: rows with these tools and the instructions `prompt`.

    An empty `prompt` adds no instructions.
    `limit` is the number of rows to take from the start. Raises DataError for a row that cannot be used unless
    `filter_none` is set, and if no row is left; ConfigError for a target that cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    told = Summary(f"data/{source.stem}.parquet")
    names, text = TOOL_SETS[tools], instructions(prompt) if prompt else ""
    with new_folder(target, replace=replace) as folder:
        kept = itertools.islice(prepared(read_rows(source), told.refused if filter_none else None), limit)
        schema = schema_of(names)
        (folder / told.file).parent.mkdir()
        (folder / "README.md").write_text(_CARD, encoding="utf-8")
        with pq.ParquetWriter(folder / told.file, schema) as writer:
            while batch := list(itertools.islice(kept, _ROWS_AT_ONCE)):
                rows = [one.row(number, names, text) for number, one in batch]
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
                for _, one in batch:
                    told.count(one)
        if not told.num_rows:
            raise DataError(f"no row of {source} can be used; the first: {told.refused[0]}")
        write_facts(folder, {"kind": "rl_rows", "format": "afm", "source": source.name, "num_rows": told.num_rows})
    return told
