"""The interfaces of stages and recipes, with their settings, tables and errors."""

from __future__ import annotations

from treadle.core.config import Section
from treadle.core.errors import TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Stage, StageContext
from treadle.core.tables import Table, column
from treadle.stages.entry import StageEntry
from treadle.stages.plan import Plan
from treadle.stages.recipes.base import Recipe, Step
from treadle.stages.report import StageReport

__all__ = [
    "Address",
    "Plan",
    "Recipe",
    "Run",
    "Section",
    "Stage",
    "StageContext",
    "StageEntry",
    "StageReport",
    "Step",
    "Table",
    "TreadleError",
    "column",
]
