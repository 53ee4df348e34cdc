"""The summarizer: another model reads the documents of a search, and the agent is told what serves its query.

Everything that goes into its prompt was written by others. Each part stands in a block of its own; nothing in it can
close that block, spell a control token or the marker after which the answer is looked for. See docs/behaviour/agent.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from treadle.agent.prompts import as_data, render_prompt, system_prompt, template_source
from treadle.agent.protocol import TOOL_PROTOCOL
from treadle.agent.tools.outcome import CallContext
from treadle.agent.web.control_tokens import without_tokens
from treadle.core.errors import ContextTooLong
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest

MARKER = "**Final Information**"
"""What helps stands after the last one of these in a reply."""
MAX_DOCUMENTS_CHARS = 20_000
"""All documents of one prompt together; what is beyond is left out, marked by three dots."""
_WHOLE_ENTRIES = 5
"""A log of at most so many entries is given as it is."""
_LAST_ENTRIES = 4

_BLOCK_TAG = re.compile(r"<(?=\s*/?\s*(?:question|reasoning|query|documents)\b)", re.IGNORECASE)
_MARKER = re.compile(r"\*{2,}\s*(Final Information)\s*\*{2,}", re.IGNORECASE)
_SEARCH = TOOL_PROTOCOL.by_name["search"]
_RESULT = TOOL_PROTOCOL.by_name["result"]


class SummaryModel(Protocol):
    """What is needed of a model; `treadle.core.llm.pool.ModelPool` fits."""

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """One completion of ids."""
        ...

    async def chat(
        self, messages: Sequence[Mapping[str, str]], sampling: Sampling, *, seed: int, session: str, deadline: float
    ) -> Completion:
        """One answer to messages that the server renders."""
        ...


class PromptCodec(Protocol):
    """What is needed of a tokenizer; `treadle.core.chat.ChatTokenizer` fits."""

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of the prompt; control tokens spelled in a message stay text."""
        ...


@dataclass(frozen=True, slots=True)
class Summary:
    """What a reply came to. `text` is empty where it did not say anything; `note` then says why."""

    text: str
    note: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Summarizer:
    """Asks one model. `codec` None leaves rendering the messages to the server."""

    def __init__(
        self,
        model: SummaryModel,
        sampling: Sampling,
        *,
        codec: PromptCodec | None = None,
        max_model_len: int | None = None,
        added_tokens: frozenset[str] = frozenset(),
    ) -> None:
        """`added_tokens`: of the model's tokenizer, where it is known; nothing of the web may spell one."""
        self._model = model
        self._sampling = sampling
        self._codec = codec
        self._max_model_len = max_model_len
        self._added_tokens = added_tokens

    async def summarize(
        self, query: str, documents: Sequence[str], context: CallContext, *, deadline: float, from_web: bool = False
    ) -> Summary:
        """What the documents say to a query; `deadline` is in the event loop's clock.

        `from_web`: documents are, or results before this one may be, of the web. Raises ModelError where the model
        cannot be asked, and DeadlineExceeded.
        """
        if from_web:
            documents = [without_tokens(document, self._added_tokens) for document in documents]
            context = replace(context, log=tuple(map(self._without_tokens_in_result, context.log)))
        messages = summary_messages(query, documents, context)
        try:
            completion = await self._ask(messages, context.seed, deadline)
        except ContextTooLong:
            completion = None
        if completion is None:
            return Summary("", "not summarized: the prompt is longer than the summarizer's window")
        text = information_of(completion.text)
        note = "" if text else "not summarized: the summarizer said nothing"
        return Summary(text, note, completion.prompt_tokens, completion.completion_tokens)

    def _without_tokens_in_result(self, entry: str) -> str:
        """An entry of the log, the inside of its result without spellings of the model's own tokens."""
        before, opening, rest = entry.partition(_RESULT.opening)
        inner, closing, after = rest.rpartition(_RESULT.closing)
        if before.strip() or not closing:
            return entry
        return before + opening + without_tokens(inner, self._added_tokens) + closing + after

    async def _ask(self, messages: Sequence[Mapping[str, str]], seed: int, deadline: float) -> Completion | None:
        # No session: nothing is shared by two of these prompts, so they go where there is least to do.
        if self._codec is None:
            return await self._model.chat(messages, self._sampling, seed=seed, session="", deadline=deadline)
        ids = self._codec.prompt_ids(messages)
        room = self._sampling.max_tokens
        if self._max_model_len is not None:
            room = min(room, self._max_model_len - len(ids))
        if room < 1:
            return None
        request = CompletionRequest(prompt=ids, max_tokens=room, sampling=self._sampling, stop=(), seed=seed)
        return await self._model.complete(request, session="", deadline=deadline)


def summarizer_prompt() -> list[str]:
    """The texts behind every prompt, for digests."""
    return [system_prompt("summarizer_system"), template_source("summarizer")]


def summary_messages(query: str, documents: Sequence[str], context: CallContext) -> list[dict[str, str]]:
    """The messages of one summary."""
    user = render_prompt(
        "summarizer",
        question=_as_data(context.question),
        reasoning=_as_data(shortened(context.log)),
        query=_as_data(query),
        documents=[_as_data(document) for document in _within(documents, MAX_DOCUMENTS_CHARS)],
    )
    return [{"role": "system", "content": system_prompt("summarizer_system")}, {"role": "user", "content": user}]


def shortened(log: Sequence[str]) -> str:
    """The reasoning so far as numbered entries.

    Of more than five, the first, the last four, those with a search and the results of searches are kept; three dots
    stand for each run of others (arXiv 2601.06860).
    """
    searches = [_SEARCH.opening in entry and _SEARCH.closing in entry for entry in log]
    parts: list[str] = []
    for number, entry in enumerate(log):
        found = number > 0 and searches[number - 1] and entry.lstrip().startswith(_RESULT.opening)
        outer = number == 0 or number >= len(log) - _LAST_ENTRIES
        if len(log) <= _WHOLE_ENTRIES or outer or searches[number] or found:
            parts.append(f"Step {number + 1}: {entry.strip()}")
        elif parts[-1] != "...":
            parts.append("...")
    return "\n\n".join(parts)


def information_of(reply: str) -> str:
    """What stands after the last marker of a reply, else the whole of it, as one line; hidden thoughts are dropped."""
    said = reply.rpartition("</think>")[2]
    return " ".join(said.rpartition(MARKER)[2].split())


def _within(documents: Sequence[str], num_chars: int) -> list[str]:
    kept: list[str] = []
    for document in documents:
        if len(document) > num_chars:
            kept.append(document[:num_chars] + "...")
            break
        kept.append(document)
        num_chars -= len(document)
    return kept


def _as_data(text: str) -> str:
    """Text that can neither end its block, nor stand for a control token, nor for the marker."""
    return as_data(_MARKER.sub(r"\1", _BLOCK_TAG.sub("&lt;", text))).strip()
