"""Compute the page with information hidden from the agent: the task's payload, and the dialogue as its partner saw it.

No other page shows this information.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.dialects.base import FRAME, PRIVATE
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.viewer.catalogue import Snapshot
from treadle.viewer.dialogue.outcomes import shown_tests
from treadle.viewer.dialogue.page_pictures import page_pictures
from treadle.viewer.pages import frame
from treadle.viewer.reading import LoadedTrajectory
from treadle.viewer.selection import Selection

_FIELD_CHARS = 16_000
_MAX_MESSAGES = 500


@dataclass(frozen=True, slots=True)
class HiddenField:
    """One field of a payload: the value itself if it is a text, else its JSON; cut if it is long."""

    name: str
    text: str
    num_chars: int

    @property
    def is_cut(self) -> bool:
        """True if only a part of the text is shown, because it is long."""
        return self.num_chars > len(self.text)


def hidden_fields(payload: Mapping[str, Any]) -> list[HiddenField]:
    """Return the fields of a payload."""
    found = []
    for name, value in payload.items():
        text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
        found.append(HiddenField(name, text[:_FIELD_CHARS], len(text)))
    return found


@dataclass(frozen=True, slots=True)
class PartnerMessage:
    """A message that the partner saw or wrote."""

    speaker: str
    text: str


def partner_view(question: str, segments: Sequence[Mapping[str, Any]]) -> list[PartnerMessage]:
    """Return the dialogue without what the agent kept private; the task is the partner's first message.

    Empty unless the trajectory is a dialogue.
    """
    if not any(segment["kind"] == "user" for segment in segments):
        return []
    messages = [PartnerMessage("partner", question)]
    for segment in segments[: 2 * _MAX_MESSAGES]:
        kind = segment["kind"]
        if kind in (FRAME, PRIVATE):
            continue
        speaker = "partner" if kind in SYSTEM_KINDS else "policy"
        if messages[-1].speaker == speaker == "policy":
            messages[-1] = PartnerMessage(speaker, messages[-1].text + segment["text"])
        else:
            messages.append(PartnerMessage(speaker, segment["text"]))
    return messages


def hidden(snapshot: Snapshot, one: LoadedTrajectory, selection: Selection) -> dict[str, Any]:
    """Return the values of the page. Raise ArtifactError if the payload cannot be read."""
    question = one.question["question"] if one.question is not None else ""
    return {
        **frame(snapshot, one, selection),
        "fields": hidden_fields(snapshot.questions.payload(one.facts["question_key"])),
        "messages": partner_view(question, one.segments),
        "tests": shown_tests(one.score),
        "pictures": page_pictures(one.calls, one.score),
    }
