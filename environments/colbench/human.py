"""Write what the model that plays the person is asked, and cut what it replies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.chat_turns import well_formed

NO_REPLY = "No response."
"""Reply in place of an empty one."""
_HELPER = "You are a helpful assistant."
_PLACE = re.compile(r"\{(description|reference|transcript|cue)\}")


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the dialogue, as the person sees it: `speaker` is `human` or `agent`."""

    speaker: str
    text: str


def human_messages(
    instructions: str, description: str, reference: str, dialogue: Sequence[Said], *, legacy: bool = False
) -> list[dict[str, str]]:
    """Return the request for the person's next reply.

    `instructions` have the places {description}, {reference}, {transcript} and {cue}; what fills them is not read
    again. `legacy` ends with the cue of the agent instead of the person, as the published program does.
    """
    parts = {
        "description": description,
        "reference": reference,
        "transcript": "\n\n".join(f"{one.speaker}: {one.text}" for one in dialogue),
        "cue": "agent:" if legacy else "human:",
    }
    text = _PLACE.sub(lambda match: parts[match[1]], instructions)
    return [{"role": "system", "content": _HELPER}, {"role": "user", "content": text}]


def cut_reply(text: str, max_chars: int, *, legacy: bool = False) -> str:
    """Return at most `max_chars` characters of a reply: whole words if there are any, with `legacy` a hard cut."""
    text = well_formed(text)
    if legacy:
        return text[:max_chars]
    text = text.strip()
    if len(text) > max_chars:
        whole = re.match(r".*\S(?=\s)", text[: max_chars + 1], re.DOTALL)
        text = whole[0] if whole else text[:max_chars]
    return text or NO_REPLY
