"""Define the parent of an expansion: the trajectory that operators work on, and what they found about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from treadle.core.untrusted.concealment import exits_as_errors
from treadle.datagen.operators.call_view import CallView
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.pools.pool import PoolEntry
from treadle.datagen.pools.role_usage import RoleUsage
from treadle.datagen.pools.steps import Step, steps_of


@dataclass(frozen=True, slots=True)
class Finding:
    """A result about a parent that several operators share; `usage` is the usage of computing it, by role."""

    usage: dict[str, RoleUsage]
    task: asyncio.Task[Any]

    @classmethod
    def begin(cls, usage: dict[str, RoleUsage], work: Awaitable[Any]) -> Finding:
        """Start `work`, which computes a result, as a separate asyncio task."""
        return cls(usage, asyncio.ensure_future(_found(work)))


async def _found(work: Awaitable[Any]) -> Any:
    with exits_as_errors():
        return await work


@dataclass(frozen=True, slots=True)
class Parent:
    """State that the operators of one expansion share.

    Attributes:
        entry: The trajectory.
        steps: Its steps, in tags; none if its native calls cannot be shown as tags.
        findings: Findings by name.
        view: Its native calls as tags, or why they cannot be shown; None for a trajectory with tags.
    """

    entry: PoolEntry
    steps: list[Step]
    findings: dict[str, Finding] = field(default_factory=dict)
    view: CallView | EditRejected | None = None

    @classmethod
    def of(cls, entry: PoolEntry, *, is_native: bool = False) -> Parent:
        """Return the parent for an entry of the pool; `is_native`: whether its calls are native ones."""
        if not is_native:
            return cls(entry, steps_of(entry.trajectory.segments))
        try:
            view = CallView.of(entry.trajectory)
        except EditRejected as rejected:
            return cls(entry, [], view=rejected)
        return cls(entry, steps_of(view.trajectory.segments), view=view)

    @property
    def usable_view(self) -> CallView | None:
        """View of native calls as tags; None if the parent has tags. Raises EditRejected if they cannot be shown."""
        if isinstance(self.view, EditRejected):
            raise EditRejected(self.view.reason, self.view.reply)
        return self.view
