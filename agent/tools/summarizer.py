"""Summarize search results for the agent with another model.

Everything in its prompt is untrusted. Each part is put into a block of its own. No text can close its block, spell a
control token, or spell the marker before the summary. See docs/behaviour/agent.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from treadle.agent.call_cache import NullCache
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.prompts import render_prompt, system_prompt, template_source
from treadle.agent.role import RoleModel
from treadle.agent.tools.outcome import CallContext
from treadle.core.errors import ContextTooLong
from treadle.core.untrusted.lookalikes import sub_first
from treadle.core.untrusted.prompt_text import as_data
from treadle.web.pages.control_tokens import without_tokens

MARKER = "**Final Information**"
"""Marker before the summary: the summary is the text after its last occurrence in a reply."""
MAX_DOCUMENTS_CHARS = 20_000
"""Most characters of all documents in one prompt; the rest is left out, marked by three dots."""
_NUM_FIRST_ENTRIES = 5
"""A log of at most this many entries is shown in full."""
_NUM_LAST_ENTRIES = 4

_BLOCK_TAG = re.compile(r"<(?=\s*/?\s*(?:question|reasoning|query|documents)\b)", re.IGNORECASE)
_MARKER = re.compile(r"\*{2,}\s*(Final Information)\s*\*{2,}", re.IGNORECASE)
_SEARCH = TOOL_DIALECT.by_name["search"]
_RESULT = TOOL_DIALECT.by_name["result"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a summary. If `text` is empty, `note` says why."""

    text: str
    note: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Summarizer:
    """Summarizer that uses one model."""

    def __init__(self, model: RoleModel, *, added_tokens: frozenset[str] = frozenset()) -> None:
        """Set up the model; `added_tokens` of its tokenizer, if known, are escaped in text from the web."""
        self._model = model
        self._added_tokens = added_tokens

    async def summarize(
        self, query: str, documents: Sequence[str], context: CallContext, *, deadline: float, from_web: bool = False
    ) -> Summary:
        """Summarize the documents with respect to a query; `deadline` is a time of the work clock.

        With `from_web`, the documents, or results before this one, may be from the web. Raises ModelError if the
        request fails, and DeadlineExceeded.
        """
        if from_web:
            documents = [without_tokens(document, self._added_tokens) for document in documents]
            context = replace(context, log=tuple(map(self._without_tokens_in_result, context.log)))
        messages = summary_messages(query, documents, context)
        try:
            # No session: these prompts share no prefix, so each goes to the least busy endpoint. The journal has the
            # outcome of the search, so the summary alone is not cached.
            reply = await self._model.ask(
                messages, cache=NullCache(), unit="summary", seed=context.seed, session="", deadline=deadline
            )
        except ContextTooLong:
            return Summary("", "not summarized: the prompt is longer than the summarizer's window")
        text = extract_information(reply.text)
        note = "" if text else "not summarized: the summarizer said nothing"
        return Summary(text, note, reply.prompt_tokens, reply.completion_tokens)

    def _without_tokens_in_result(self, entry: str) -> str:
        """Return a log entry with spellings of the model's added tokens broken up inside its result block."""
        before, opening, rest = entry.partition(_RESULT.opening)
        inner, closing, after = rest.rpartition(_RESULT.closing)
        if before.strip() or not closing:
            return entry
        return before + opening + without_tokens(inner, self._added_tokens) + closing + after


def summarizer_prompt() -> list[str]:
    """Return the system prompt and the template that the prompts are made from, for digests."""
    return [system_prompt("summarizer_system"), template_source("summarizer")]


def summary_messages(query: str, documents: Sequence[str], context: CallContext) -> list[dict[str, str]]:
    """Return the messages of one summary request."""
    user = render_prompt(
        "summarizer",
        question=_as_data(context.question),
        reasoning=_as_data(shortened(context.log)),
        query=_as_data(query),
        documents=[_as_data(document) for document in _fit_documents(documents, MAX_DOCUMENTS_CHARS)],
    )
    return [{"role": "system", "content": system_prompt("summarizer_system")}, {"role": "user", "content": user}]


def shortened(log: Sequence[str]) -> str:
    """Return the reasoning so far as numbered entries.

    Of more than five entries, the first, the last four, and all searches and their results are kept. Three dots replace
    each run of others (arXiv 2601.06860).
    """
    searches = [_SEARCH.opening in entry and _SEARCH.closing in entry for entry in log]
    parts: list[str] = []
    for number, entry in enumerate(log):
        found = number > 0 and searches[number - 1] and entry.lstrip().startswith(_RESULT.opening)
        outer = number == 0 or number >= len(log) - _NUM_LAST_ENTRIES
        if len(log) <= _NUM_FIRST_ENTRIES or outer or searches[number] or found:
            parts.append(f"Step {number + 1}: {entry.strip()}")
        elif parts[-1] != "...":
            parts.append("...")
    return "\n\n".join(parts)


def extract_information(reply: str) -> str:
    """Return the text after the last marker of a reply, or else the whole reply, as one line; reasoning is dropped."""
    said = reply.rpartition("</think>")[2]
    return " ".join(said.rpartition(MARKER)[2].split())


def _fit_documents(documents: Sequence[str], num_chars: int) -> list[str]:
    kept: list[str] = []
    for document in documents:
        if len(document) > num_chars:
            kept.append(document[:num_chars] + "...")
            break
        kept.append(document)
        num_chars -= len(document)
    return kept


def _as_data(text: str) -> str:
    """Return text that can neither end its block nor spell a control token or the marker."""
    return as_data(_MARKER.sub(r"\1", sub_first(_BLOCK_TAG, text, lambda _: "&lt;"))).strip()
