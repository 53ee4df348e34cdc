"""Warn about questions that the tutor of the demo does not know."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import click

from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run

_MAX_SCANNED = 1_000


def print_unknown_to_tutor(run: Run, records: Sequence[StageRecord]) -> None:
    """Warn if the tutor was asked unknown questions: its wrong answers to them say nothing about the questions."""
    from treadle.demo.tutor.settings import DESCRIPTION, MODEL

    semantic = run.info.semantic
    models = [semantic["models"].get(name, {}).get("model", "") for name in semantic["flow"]["models"]]
    table = next((record.outputs["questions"] for record in records if "questions" in record.outputs), None)
    if table is None or not any(model.startswith(MODEL) for model in models):
        return
    from treadle.demo.programs.families import read_request
    from treadle.demo.tutor.ledger.errands import read_errands
    from treadle.demo.world_templates import recognise

    asked = [row["question"] for row in islice(run.rows(table).rows(("question",)), _MAX_SCANNED)]
    if unknown := sum(not (recognise(one) or read_request(one) or read_errands(one)) for one in asked):
        click.echo(
            f"\n{MODEL} is a {DESCRIPTION}: {unknown:,} of {len(asked):,} questions are not from the sample world, so "
            "its answers to them mean nothing; use another model for these"
        )
