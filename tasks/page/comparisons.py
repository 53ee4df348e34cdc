"""Pairs of models on the same questions: how far apart, how sure, and which questions changed sides."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.eval.page.document import Section
from treadle.tasks.page.models import Model
from treadle.tasks.page.sources import Source


def comparisons_section(sources: Sequence[Source], models: Sequence[Model]) -> list[Section]:
    """What the reports of the runs compared, and models of different runs on the questions that both were asked."""
    return []
