"""Write the request to the model that plays the person, send it, and cut the reply."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.agent.cached_units import asked_unit
from treadle.agent.contract import EpisodeOptions
from treadle.agent.role import RoleModel
from treadle.core.chat_turns import well_formed
from treadle.core.errors import ConfigError, DeadlineExceeded, EndpointUnavailable, ModelError
from treadle.core.seeds import derive_seed
from treadle.environments.colbench.settings import HUMAN, ColbenchSettings

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

    `instructions` have the placeholders {description}, {reference}, {transcript} and {cue}; those inside inserted texts
    are not filled. The cue names the next speaker: `human:`, or with `legacy` `agent:`, as in the published program.
    """
    parts = {
        "description": description,
        "reference": reference,
        "transcript": "\n\n".join(f"{one.speaker}: {one.text}" for one in dialogue),
        "cue": "agent:" if legacy else "human:",
    }
    text = _PLACE.sub(lambda match: parts[match[1]], instructions)
    return [{"role": "system", "content": _HELPER}, {"role": "user", "content": text}]


@dataclass(frozen=True, slots=True)
class Person:
    """The person of one dialogue, whom `model` plays; without a model, `reply` fails.

    Attributes:
        task_key: Key of the task.
        options: Options of the episode, with its seed and the cache of earlier replies.
    """

    settings: ColbenchSettings
    model: RoleModel | None
    task_key: str
    options: EpisodeOptions

    async def reply(self, messages: Sequence[Mapping[str, Any]], turn: int, deadline: float) -> str:
        """Return the person's reply to turn number `turn` (from 0), cut to `reply_chars`.

        Raises ConfigError without a model, and ModelError. In the profile `legacy`, `No response.` is the reply to a
        request that fails with a ModelError other than EndpointUnavailable and DeadlineExceeded.
        """
        settings, options = self.settings, self.options
        if self.model is None:
            raise ConfigError(f"{settings.type} asks a person in every turn: add [models.human]")
        try:
            reply = await self.model.ask(
                messages,
                cache=options.cache,
                unit=asked_unit(HUMAN, turn),
                seed=derive_seed(options.seed, "ask", HUMAN, turn),
                session=f"{self.task_key} {options.seed}",
                deadline=deadline,
            )
        except (EndpointUnavailable, DeadlineExceeded):
            raise
        except ModelError:
            if not settings.is_legacy:
                raise
            return NO_REPLY
        return cut_reply(reply.text, settings.human.reply_chars, legacy=settings.is_legacy)


def cut_reply(text: str, max_chars: int, *, legacy: bool = False) -> str:
    """Return at most `max_chars` characters of a reply, cut after a whole word if possible, with `legacy` anywhere."""
    text = well_formed(text)
    if legacy:
        return text[:max_chars]
    text = text.strip()
    if len(text) > max_chars:
        whole = re.match(r".*\S(?=\s)", text[: max_chars + 1], re.DOTALL)
        text = whole[0] if whole else text[:max_chars]
    return text or NO_REPLY
