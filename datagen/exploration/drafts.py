"""Read the tasks that a model made of an exploration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.core.chat_turns import well_formed
from treadle.core.config import digest_json
from treadle.core.untrusted.json_text import load_json

_FENCED = re.compile(r"```(?:json)?\s*(\[.*\])\s*```", re.DOTALL)
MAX_QUERY_CHARS = 4_000
MAX_REFERENCE_CHARS = 20_000
MAX_REFERENCE_STEPS = 100


@dataclass(frozen=True, slots=True)
class Draft:
    """A task that a model made of an exploration, before filters and replay.

    Attributes:
        seed_key: Key of the seed task whose state was explored.
        query: What is asked.
        reference: Actions that solve it, as the model believes.
        confidence: The model's confidence that the task is right, from 0 to 1.
        exploration: Number of the exploration of the seed task.
    """

    seed_key: str
    query: str
    reference: tuple[str, ...]
    confidence: float
    exploration: int = 0

    @property
    def key(self) -> str:
        """Key of 16 hex digits."""
        return digest_json([self.seed_key, self.query, self.reference])[:16]

    def as_json(self) -> dict[str, Any]:
        """Return the draft as an object; `from_json` reads it."""
        return {
            "seed_key": self.seed_key,
            "query": self.query,
            "reference": list(self.reference),
            "confidence": self.confidence,
            "exploration": self.exploration,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Draft:
        """Read the output of `as_json`."""
        return cls(**{**data, "reference": tuple(data["reference"])})


@dataclass(frozen=True, slots=True)
class DraftList:
    """Tasks read from a model's summary of an exploration.

    Attributes:
        drafts: The tasks, each with its own query and reference.
        num_refused: Number of items that are no task: without query, reference or confidence, or too long.
    """

    drafts: tuple[Draft, ...]
    num_refused: int


def read_summary(text: str, seed_key: str, exploration: int) -> DraftList | None:
    """Return the tasks in a reply; None if it is no JSON list of objects.

    Reasoning up to `</think>`, a code fence and text around the list are ignored.
    """
    found = _list_in(text.rpartition("</think>")[2])
    if found is None:
        return None
    drafts = [_draft(item, seed_key, exploration) for item in found]
    kept = {draft.key: draft for draft in drafts if draft is not None}
    return DraftList(tuple(kept.values()), sum(draft is None for draft in drafts))


def _list_in(reply: str) -> list[Any] | None:
    fenced = _FENCED.search(reply)
    start, end = reply.find("["), reply.rfind("]")
    for text in (fenced[1] if fenced else "", reply.strip(), reply[start : end + 1] if 0 <= start < end else ""):
        try:
            found = load_json(text.encode("utf-8", "replace"))
        except ValueError:
            continue
        if isinstance(found, list):
            return found
    return None


def _draft(item: Any, seed_key: str, exploration: int) -> Draft | None:
    if not isinstance(item, dict):
        return None
    query, confidence, reference = item.get("query"), item.get("confidence"), item.get("reference")
    if isinstance(reference, str):
        reference = reference.splitlines()
    if not isinstance(confidence, int | float) or isinstance(confidence, bool):
        return None
    if not isinstance(query, str) or not isinstance(reference, list):
        return None
    if not all(isinstance(action, str) for action in reference):
        return None
    actions = tuple(kept for action in reference if (kept := _clean(action)))
    asked = _clean(query)
    if not asked or not actions or not math.isfinite(confidence) or not 0 <= confidence <= 1:
        return None
    if len(asked) > MAX_QUERY_CHARS or len(actions) > MAX_REFERENCE_STEPS or _length(actions) > MAX_REFERENCE_CHARS:
        return None
    return Draft(seed_key, asked, actions, float(confidence), exploration)


def _length(actions: tuple[str, ...]) -> int:
    return sum(map(len, actions))


def _clean(text: str) -> str:
    return well_formed(text).replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
