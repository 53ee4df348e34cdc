"""Build the section on what looks wrong with rollouts and scores."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.environments.diagnosis.reading import all_diagnoses
from treadle.report.page.document import Fold, Paragraph, Part, Section
from treadle.report.problems import PROBLEMS_READING, PROBLEMS_TITLE, examples_table
from treadle.tasks.page.sources import PageRun

_MAX_OPEN = 3
"""Maximum number of problems that are shown unfolded."""


def problems_section(sources: Sequence[PageRun]) -> list[Section]:
    """Return the section on the problems of all rollouts and scores of the runs; none without problems."""
    parts: list[Part] = []
    for source in sources:
        for one in all_diagnoses(source.records, source.run):
            head = source.named(f"{one.address}: {one.headline}")
            asked = [f"Asked for: {one.asked}"] if one.asked else []
            inner: list[Part] = [Paragraph(sentence) for sentence in (*one.causes, *asked)]
            inner.append(examples_table(one))
            parts += [Paragraph(head), *inner] if len(parts) < _MAX_OPEN else [Fold(head, inner)]
    return [Section("problems", PROBLEMS_TITLE, PROBLEMS_READING, parts)] if parts else []
