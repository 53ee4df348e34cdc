"""Count the calls of rollouts by tool. Names are data: a model may call anything, so their number is bounded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle.agent.contract import CallRecord, Ledger

INVALID = "(invalid)"
"""Name that replaces all names that no tool can have."""
OTHERS = "(others)"
"""Common name of all tools beyond the most called ones; no tool can have this name."""
MAX_TOOLS = 8
"""Maximum number of tools with figures of their own."""
_COUNTS = ("requested", "executed", "failed")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def tool_counts(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the column `tools`: the calls of each tool, sorted by name."""
    counts: dict[str, Counter[str]] = {}
    for name, requested in ledger.requested.items():
        of_tool = {"requested": requested, "executed": ledger.executed[name], "failed": ledger.failed[name]}
        counts.setdefault(_column_name(name), Counter()).update(of_tool)
    return [{"tool": name, **counts[name]} for name in sorted(counts)]


def seconds_by_tool(calls: Iterable[CallRecord]) -> list[dict[str, Any]]:
    """Return the column `seconds_by_tool`: calls that ran and their seconds, sorted by tool."""
    found: dict[str, list[float]] = {}
    for call in calls:
        if call.executed:
            found.setdefault(_column_name(call.tool), []).append(call.seconds)
    return [{"tool": name, "executed": len(found[name]), "seconds": sum(found[name])} for name in sorted(found)]


def _column_name(tool: str) -> str:
    return tool if _NAME.fullmatch(tool) else INVALID


def counts_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return requested calls by tool in words, the most called tool first, such as `search 2, python 1`."""
    totals = ToolTotals()
    totals.add(tools)
    return ", ".join(f"{name} {counts['requested']:,}" for name, counts in totals.bounded().items())


class ToolTotals:
    """Sums of the column `tools` over rollouts."""

    def __init__(self) -> None:
        self._totals: dict[str, Counter[str]] = {}

    def add(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Add the column of one rollout."""
        for calls in tools:
            counts = self._totals.setdefault(calls["tool"], Counter())
            counts.update({key: calls[key] for key in _COUNTS})

    def ranked(self) -> list[str]:
        """Return all names, those with most executed calls first, so that unknown tools, which never run, are last."""
        totals = self._totals
        return sorted(totals, key=lambda name: (-totals[name]["executed"], -totals[name]["requested"], name))

    def bounded(self) -> dict[str, dict[str, int]]:
        """Map the `MAX_TOOLS` most called tools to their sums, and `OTHERS` to those of all others if there are any."""
        names = self.ranked()
        found = {name: dict(self._totals[name]) for name in names[:MAX_TOOLS]}
        if rest := names[MAX_TOOLS:]:
            found[OTHERS] = {key: sum(self._totals[name][key] for name in rest) for key in _COUNTS}
        return found
