"""Choose the tools that have separate figures: tool names come from the data, so there may be any number of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from treadle.environments.rollouts.tool_counts import OTHERS, ToolTotals
from treadle.eval.scored_rollout import ScoredRollout, ToolCalls

MAX_TOOL_SETS = 16
"""Maximum number of sets of tools whose rollouts are counted separately; all other sets share one count."""


@dataclass(frozen=True, slots=True)
class CommonTools:
    """The tools that rollouts call most often, and the sets of them that rollouts use most often."""

    names: tuple[str, ...]
    """Names of the tools with most calls that ran, in descending order; then `OTHERS` if there are more tools."""
    sets: frozenset[str]
    """At most `MAX_TOOL_SETS` values of `ScoredRollout.tools_used`."""

    @classmethod
    def of(cls, rollouts: Iterable[ScoredRollout]) -> CommonTools:
        """Return the most frequent tools and sets of tools of these rollouts."""
        given, totals = list(rollouts), ToolTotals()
        for rollout in given:
            totals.add([calls._asdict() for calls in rollout.tools])
        chosen = cls(tuple(totals.bounded()), frozenset())
        used = Counter(chosen._merged(rollout).tools_used for rollout in given)
        sets = sorted(used, key=lambda name: (-used[name], name))[:MAX_TOOL_SETS]
        return cls(chosen.names, frozenset(sets))

    def apply(self, rollout: ScoredRollout) -> ScoredRollout:
        """Return the rollout with its other tools under the name `OTHERS`."""
        merged = self._merged(rollout)
        return merged if merged.tools_used in self.sets else replace(merged, has_rare_tools=True)

    def _merged(self, rollout: ScoredRollout) -> ScoredRollout:
        others = [calls for calls in rollout.tools if calls.tool not in self.names]
        if not others:
            return rollout
        counts = (sum(values) for values in zip(*(calls[1:] for calls in others), strict=True))
        kept = (calls for calls in rollout.tools if calls.tool in self.names)
        return replace(rollout, tools=(*kept, ToolCalls(OTHERS, *counts)))
