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
    """Web page of one turn (from 1): its picture, or a remark why there is none, and its similarity if scored."""

    turn: int
    picture: str
    remark: str
    similarity: float | None


@dataclass(frozen=True, slots=True)
class PagePictures:
    """Web pages of a dialogue.

    `target` is the digest of the picture to reproduce; `measure` names the similarity, and is empty without a score.
    """

    target: str
    measure: str
    pages: Sequence[ShownPage]


def page_pictures(calls: Sequence[Mapping[str, Any]], score: Mapping[str, Any] | None) -> PagePictures | None:
    """Return the web pages in a ledger of calls; None if the rollout is no dialogue about a web page."""
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
    """Return the note of a page without its picture; empty for most pages."""
    return note.partition(", ")[2] if noted_picture(note) else note


def _similarities(score: Mapping[str, Any] | None) -> tuple[str, dict[int, float]]:
    """Return the name of the measure, and turn -> similarity, from the column `detail` of a row of `scores`."""
    detail = orjson.loads((score or {}).get("detail") or "{}")
    rows = detail.get("pages") if isinstance(detail, dict) else None
    if not isinstance(rows, list):
        return "", {}
    known = [one for one in rows if isinstance(one, dict) and isinstance(one.get("similarity"), float)]
    return str(detail.get("measure", "")), {one["turn"]: one["similarity"] for one in known}
