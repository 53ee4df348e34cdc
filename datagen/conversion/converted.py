"""Read the trajectories that the stage `conversion` accepted, as whole texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from treadle.core.runs.stage import Rows
from treadle.datagen.texts.files import WholeText

CONVERTED, SOURCE = "conversion", "source"
"""Values of `operator` for a rewritten trajectory, and for the one that it was made from."""
_COLUMNS = (
    "rollout_key", "source_key", "question_key", "dataset", "domain", "model", "source_model", "status",
    "first_messages", "text", "tag", "source_messages", "source_text", "source_tag",
)  # fmt: skip


def read_conversions(tables: Sequence[Rows], *, with_sources: bool = False) -> Iterator[WholeText]:
    """Yield the accepted rewrites in their order, each followed by its source if `with_sources`.

    Rewrites that were not accepted are skipped, and so are their sources.
    """
    for table in tables:
        for row in table.rows(_COLUMNS):
            if row["status"] != "converted":
                continue
            same = {
                "question_key": row["question_key"],
                "dataset": row["dataset"],
                "domain": row["domain"],
                "question": "",
                "where": f"trajectory {row['rollout_key']}",
            }
            yield WholeText(
                key=row["rollout_key"],
                messages=orjson.loads(row["first_messages"]),
                text=row["text"],
                tag=row["tag"],
                dialect="gap",
                model=row["model"],
                operator=CONVERTED,
                parents=(row["source_key"],),
                **same,
            )
            if with_sources:
                yield WholeText(
                    key=row["source_key"],
                    messages=orjson.loads(row["source_messages"]),
                    text=row["source_text"],
                    tag=row["source_tag"],
                    model=row["source_model"],
                    operator=SOURCE,
                    **same,
                )
