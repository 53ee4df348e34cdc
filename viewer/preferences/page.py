"""Compute the page with the candidates for each turn of a rollout, and the pairs that it is part of."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.viewer.catalogue import Snapshot
from treadle.viewer.pages import frame
from treadle.viewer.preferences.stored import Side, candidates_of, preference_results, sides_of
from treadle.viewer.reading import LoadedTrajectory
from treadle.viewer.selection import Selection
from treadle.viewer.tables import collect_problem

_MAX_TURNS = 60
_MAX_CANDIDATES = 64
_TEXT_CHARS = 4000


@dataclass(frozen=True, slots=True)
class ShownCandidate:
    """A candidate; `advantage` is None if it was not scored. Its text is cut if it is long."""

    number: int
    text: str
    num_tokens: int
    is_truncated: bool
    advantage: float | None
    num_chosen: int
    num_rejected: int


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """A turn with its candidates, the one with the highest advantage first."""

    number: int
    candidates: Sequence[ShownCandidate]


def preferences(snapshot: Snapshot, one: LoadedTrajectory, selection: Selection) -> dict[str, Any]:
    """Return the values of the page; tables that cannot be read are named in `problems`."""
    run, key = snapshot.run, one.facts["key"]
    results = preference_results(run, one.facts["instance"])
    turns: list[ShownTurn] = []
    sides: list[Side] = []
    values = frame(snapshot, one, selection)
    with collect_problem(values["problems"]):
        rows = candidates_of(run, results, key)
        keys = [f"{row['turn_key']}:{row['candidate']}" for row in rows]
        parts = {own: sides_of(run, [results.turn_pairs], own) for own in keys}
        turns = [
            _turn(number, list(group), parts) for number, group in itertools.groupby(rows, key=lambda row: row["turn"])
        ]
    with collect_problem(values["problems"]):
        sides = sides_of(run, results.rollout_pairs, key)
    return {
        **values,
        "turns": turns[:_MAX_TURNS],
        "num_left_out": max(0, len(turns) - _MAX_TURNS),
        "sides": sides[:_MAX_CANDIDATES],
    }


def _turn(number: int, rows: Sequence[Mapping[str, Any]], parts: Mapping[str, Sequence[Side]]) -> ShownTurn:
    shown = []
    for row in rows:
        own = parts[f"{row['turn_key']}:{row['candidate']}"]
        num_chosen = sum(side.is_chosen for side in own)
        shown.append(
            ShownCandidate(
                row["candidate"],
                row["text"][:_TEXT_CHARS],
                row["num_tokens"],
                row["truncated"],
                row.get("advantage"),
                num_chosen,
                len(own) - num_chosen,
            )
        )
    shown.sort(key=lambda one: (one.advantage is None, -(one.advantage or 0.0), one.number))
    return ShownTurn(number + 1, shown[:_MAX_CANDIDATES])
