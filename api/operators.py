"""The interface of the operators that edit trajectories of pools."""

from __future__ import annotations

from treadle.datagen.operators.base import Branch, Edit, Operator
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.rejection import EditRejected

__all__ = [
    "Branch",
    "Edit",
    "EditRejected",
    "Operator",
    "OperatorContext",
]
