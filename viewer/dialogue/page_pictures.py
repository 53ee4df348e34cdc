"""Show the pages of a dialogue next to the target page, from stored pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.environments.colbench.frontend.markup import PAGE, TARGET
from treadle.environments.planning.tools.pictures import noted_picture

_MAX_SHOWN = 50


@dataclass(frozen=True, slots=True)
class ShownPage:
    """Page of one turn, counted from 1: its picture, or why it has none, and its similarity if it was scored."""

    turn: int
    picture: str
    remark: str
    similarity: float | None


@dataclass(frozen=True, slots=True)
class PagePictures:
    """Pages of a dialogue. `target` is the picture of the page to reproduce; `measure` is empty without a score."""

    target: str
    measure: str
    pages: Sequence[ShownPage]


def page_pictures(calls: Sequence[Mapping[str, Any]], score: Mapping[str, Any] | None) -> PagePictures | None:
    """Return the pages in a ledger; None if the rollout is no dialogue about a page."""
    target = next((noted_picture(call.get("note", "")) for call in calls if call.get("tool") == TARGET), "")
    if not target:
        return None
    measure, found = _similarities(score)
    pages = [
        ShownPage(
            call["turn"] + 1,
            noted_picture(call.get("note", "")),
            _remark(call.get("note", "")),
            found.get(call["turn"]),
        )
        for call in calls
        if call.get("tool") == PAGE
    ]
    return PagePictures(target, measure, pages[:_MAX_SHOWN])


def _remark(note: str) -> str:
    """Return what the note of a page says besides the picture; empty for most."""
    return note.partition(", ")[2] if noted_picture(note) else note


def _similarities(score: Mapping[str, Any] | None) -> tuple[str, dict[int, float]]:
    """Return the measure and the similarity of each turn in the column `detail` of a row of `scores`."""
    detail = orjson.loads((score or {}).get("detail") or "{}")
    rows = detail.get("pages") if isinstance(detail, dict) else None
    if not isinstance(rows, list):
        return "", {}
    known = [one for one in rows if isinstance(one, dict) and isinstance(one.get("similarity"), float)]
    return str(detail.get("measure", "")), {one["turn"]: one["similarity"] for one in known}
