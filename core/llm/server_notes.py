"""Describe what a model's servers lack, and the consequences: one line per fact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treadle.core.llm.config import ModelSettings
from treadle.core.llm.hosted import WHOLE_TOP_P
from treadle.core.llm.stops import DROPPED, IGNORED, NAMED
from treadle.core.llm.types import ServerFacts


@dataclass(frozen=True, slots=True)
class ServerNote:
    """One fact about a model's servers; `is_loss` is set if results or rows lack something because of it."""

    text: str
    is_loss: bool


def server_notes(settings: ModelSettings, facts: ServerFacts) -> list[ServerNote]:
    """Return the notes on the facts that a model's preflight found; notes with a loss come first."""
    notes = [*_stop_notes(settings, facts), *_key_notes(facts)]
    if facts.max_model_len is None:
        text = (
            "reports no context window: a rollout ends when a request is refused; set max_model_len to know it before"
        )
        notes.append(ServerNote(text, True))
    if facts.needs_reasoning:
        notes.append(ServerNote("returns reasoning apart, and demands it back: it is kept, and sent back", False))
    elif facts.splits_reasoning:
        notes.append(ServerNote("returns reasoning apart: it is kept as reasoning, and not sent back", False))
    if settings.extra_body:
        notes.append(ServerNote(f"gets {', '.join(sorted(settings.extra_body))} (extra_body) in every request", False))
    return sorted(notes, key=lambda note: not note.is_loss)


def missing_ids(settings: ModelSettings, facts: ServerFacts, *, has_tokenizer: bool) -> str | None:
    """Return why the rollouts of a model have no token ids, and what follows; None if they have them."""
    if settings.api == "chat":
        cause = "is asked with messages"
    elif settings.token_ids == "off":
        cause = 'works in text mode (token_ids = "off")'
    elif not has_tokenizer:
        cause = "works in text mode, as no tokenizer is named"
    elif not facts.token_ids:
        cause = "works in text mode, as it returns no token ids"
    else:
        return None
    return f"{cause}: rows have no token ids"


def _stop_notes(settings: ModelSettings, facts: ServerFacts) -> Iterator[ServerNote]:
    if "stop" in facts.refused_keys:
        text = "refuses stop strings: requests have none; text after a call is dropped, but billed"
        yield ServerNote(text, True)
        return
    if settings.api == "chat":
        return
    urls = {style: ", ".join(url for url in facts.stops if facts.stops[url] == style) for style in facts.stops.values()}
    if found := urls.get(IGNORED):
        yield ServerNote(f"{found} ignores stop strings: text after a call is dropped, but billed", True)
    if found := urls.get(DROPPED):
        yield ServerNote(
            f"{found} leaves out the stop string that ended an answer and does not name it: a call or an answer that "
            "is open where the text ends is taken as closed",
            True,
        )
    if found := urls.get(NAMED):
        yield ServerNote(f"{found} leaves out the stop string that ended an answer and names it: it is put back", False)


def _key_notes(facts: ServerFacts) -> Iterator[ServerNote]:
    refused = facts.refused_keys
    if "seed" in refused:
        yield ServerNote("refuses seeds: requests have none, and results cannot be reproduced", True)
    if fixed := [key for key in ("temperature", "top_p") if key in refused]:
        yield ServerNote(f"refuses {' and '.join(fixed)}: it samples with a value of its own, taken as 1", False)
    if "max_tokens" in refused:
        yield ServerNote("refuses max_tokens: the limit is sent as max_completion_tokens", False)
    if left_out := [key for key in ("tool_choice", "parallel_tool_calls") if key in refused]:
        yield ServerNote(f"refuses {' and '.join(left_out)}: left out, the service decides", False)
    if WHOLE_TOP_P in refused:
        yield ServerNote("refuses a top_p of 1: it is left out, which means the same", False)
