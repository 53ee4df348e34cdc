"""Build the model requests of one rollout as chat messages, for services that render the conversation themselves.

The service receives the assistant's turn as a conversation: the model's own text as assistant messages, tool results as
user messages. No tool output can end up in an assistant message. Reasoning that a service returns outside the text is
kept in the transcript. It is sent back only to a service that demands it. For native tool calls see
`treadle.agent.native_chat_prompts`. Normative: docs/behaviour/agent.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from treadle.agent.continuation import continued_turn
from treadle.agent.contract import Message
from treadle.agent.dialects.base import FRAME, REASONING, RESULT, Segment
from treadle.agent.model_types import ChatModel, ModelBinding
from treadle.agent.prompt_strategy import (
    TokenLimit,
    dropped_stop,
    estimate_kept_tokens,
    estimate_tokens,
    segments_to_show,
    tokens_to_ask,
)
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.transcript import Transcript
from treadle.agent.trimming import Trimming
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion

CONTINUE_MESSAGE = "Go on."
"""Content of the user message that is added if the conversation would otherwise end with an assistant message."""
CONTINUE_BEGUN_MESSAGE = (
    "Continue your last message exactly where it ends. Write only what follows, and repeat nothing."
)
"""Content of that message if the beginning of the last turn was given, by an operator's edit or by a prefix."""


class ChatPrompts:
    """Requests as chat messages.

    Token counts are those of the service. A character that the service has not counted yet counts as one token.
    """

    def __init__(
        self, engine: ModelBinding, model: ChatModel, messages: Sequence[Mapping[str, str]], transcript: Transcript
    ) -> None:
        self._engine = engine
        self._model = model
        self._first_messages = messages
        self._transcript = transcript
        self._first_prompt_tokens: int | None = None
        self._counted_tokens = 0
        self._counted_chars = 0
        self._reasoning_chars = 0
        self._left_out_tokens = 0
        self._is_begun = bool(transcript.text)
        self.prompt_ids = array("i")

    def max_new_tokens(self) -> tuple[int, TokenLimit]:
        """See `PromptStrategy`. Results count towards the budget once the service has counted them."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        window = most
        if limits.max_model_len is not None:
            num_chars = self._num_chars()
            most_used = self._counted_tokens + num_chars - self._counted_chars
            used = estimate_tokens(num_chars, self._counted_tokens, self._counted_chars)
            window = max(
                1, tokens_to_ask(limits.max_model_len - most_used, limits.max_model_len - used, limits.trimming)
            )
        budget = most
        if limits.max_trajectory_tokens is not None:
            used = self._left_out_tokens + self._counted_tokens - (self._first_prompt_tokens or 0)
            budget = limits.max_trajectory_tokens - used
        return min(most, window, budget), "context_full" if window <= budget else "budget"

    def find_trim(self, trimming: Trimming) -> list[int] | None:
        """See `PromptStrategy`. Estimates tokens from characters, at the ratio of the text that the service counted."""
        window = self._engine.limits.max_model_len
        used = estimate_tokens(self._num_chars(), self._counted_tokens, self._counted_chars)
        return segments_to_show(self._transcript, trimming, None if window is None else window - used, self._num_tokens)

    def _num_tokens(self, segment: Segment) -> int:
        if segment.kind == FRAME or (segment.kind == REASONING and not self._engine.returns_reasoning):
            return 0
        return estimate_tokens(len(segment.text), self._counted_tokens, self._counted_chars)

    def trim(self, kept: Sequence[int], texts: Mapping[int, str] = MappingProxyType({})) -> None:
        """See `PromptStrategy`."""
        num_before = estimate_tokens(self._num_chars(), self._counted_tokens, self._counted_chars)
        self._transcript.trim(kept, texts)
        shown = self._transcript.shown_segments()
        self._reasoning_chars = sum(len(one.text) for one in shown if one.kind == REASONING)
        num_chars = self._num_chars()
        num_tokens = estimate_tokens(num_chars, self._counted_tokens, self._counted_chars)
        self._left_out_tokens += num_before - num_tokens
        self._counted_tokens, self._counted_chars = num_tokens, num_chars

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        go_on = CONTINUE_BEGUN_MESSAGE if self._begun_text else CONTINUE_MESSAGE
        first, shown = self._first_messages, self._transcript.shown_segments()
        if len(self._transcript.contexts) > 1:
            first, shown = _with_leading_results(first, shown)
        return await self._model.chat(
            conversation(first, shown, go_on),
            self._sampling(max_tokens),
            seed=seed,
            session=session,
            deadline=deadline,
            stop=self._engine.dialect.stops,
        )

    @property
    def _begun_text(self) -> str:
        """Beginning of the next turn, if the rollout's prefix ends in the middle of that turn; else empty."""
        return self._transcript.open_text if self._is_begun else ""

    def _sampling(self, max_tokens: int) -> Sampling:
        sampling = self._engine.sampling
        return sampling if max_tokens == sampling.max_tokens else sampling.model_copy(update={"max_tokens": max_tokens})

    def _note_first_prompt(self, completion: Completion) -> None:
        if self._first_prompt_tokens is None:
            self._first_prompt_tokens = completion.prompt_tokens

    def _add_reasoning(self, completion: Completion) -> None:
        """Keep reasoning that the service returned outside the text; store the number of tokens of the first prompt."""
        self._note_first_prompt(completion)
        if completion.reasoning:
            self._transcript.append_reasoning(completion.reasoning)
            self._reasoning_chars += len(completion.reasoning)

    def add_completion(self, completion: Completion) -> bool:
        """See `PromptStrategy`."""
        if begun := self._begun_text:
            text = continued_turn(begun, completion.text, completion.reasoning, self._engine.dialect)
            completion = replace(completion, text=text, reasoning="")
        self._is_begun = False
        self._add_reasoning(completion)
        before = self._num_chars()
        marker = dropped_stop(self._transcript.open_text, completion, self._engine.dialect)
        was_added = self._transcript.append_completion(completion.text, None, completion.completion_tokens, marker)
        kept = min(self._num_chars() - before, len(completion.text))
        # Hidden reasoning is billed, but it is not sent back with the next request. Hence at most one token per kept
        # character.
        self._counted_tokens = completion.prompt_tokens + min(estimate_kept_tokens(completion, kept), kept)
        self._counted_chars = before + kept
        return was_added

    def _num_chars(self) -> int:
        """Return the number of characters of the next request."""
        sent = len(self._transcript.shown_text) - (0 if self._engine.returns_reasoning else self._reasoning_chars)
        return sum(len(message["content"]) for message in self._first_messages) + sent

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """See `PromptStrategy`; dialects without native calls have no tools to add."""
        self._transcript.append(messages)


def _with_leading_results(
    first_messages: Sequence[Mapping[str, str]], segments: list[Segment]
) -> tuple[Sequence[Mapping[str, str]], list[Segment]]:
    """Move results that begin a trimmed context into the last of `first_messages`; return messages and segments.

    Otherwise two user messages would follow each other, which some services refuse.
    """
    count = next((place for place, one in enumerate(segments) if one.kind != RESULT), len(segments))
    if not count:
        return first_messages, segments
    *others, last = first_messages
    text = "".join(one.text for one in segments[:count])
    return [*others, {**last, "content": last["content"] + text}], segments[count:]


def conversation(
    first_messages: Sequence[Mapping[str, str]], segments: Iterable[Segment], go_on: str = CONTINUE_MESSAGE
) -> list[dict[str, str]]:
    """Return `first_messages`, which ends with a user message, followed by the assistant turn as messages.

    If they would end with the model's text, a user message `go_on` is added. Results become user messages, messages of
    the environment keep their role, and model text becomes assistant messages. The author of a segment is taken from
    its kind, never from its text.
    """
    turns: list[dict[str, str]] = []
    for segment in segments:
        if segment.kind in (FRAME, REASONING):
            continue
        role = "assistant" if segment.kind not in SYSTEM_KINDS else segment.kind
        is_message = role not in ("assistant", RESULT)
        role = "user" if role == RESULT else role
        if turns and turns[-1]["role"] == role and not is_message:
            turns[-1]["content"] += segment.text
        else:
            turns.append({"role": role, "content": segment.text})
    if turns and turns[-1]["role"] == "assistant":
        turns.append({"role": "user", "content": go_on})
    return [*({"role": message["role"], "content": message["content"]} for message in first_messages), *turns]
