"""The interface of strategies and filters of the stage `exploration`."""

from __future__ import annotations

from treadle.datagen.exploration.drafts import Draft
from treadle.datagen.exploration.filters import DraftFilter
from treadle.datagen.exploration.profile import Profile
from treadle.datagen.exploration.strategies import Strategy

__all__ = [
    "Draft",
    "DraftFilter",
    "Profile",
    "Strategy",
]
