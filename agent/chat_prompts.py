"""Build the model requests of one rollout as chat messages, for services that render the conversation themselves.

Without native tool calls, the service receives the assistant's turn as a conversation: the model's own text as
assistant messages, tool results as user messages. No tool output can end up in an assistant message. With native tool
calls, calls and results go back as the service returned them. Reasoning that a service returns outside the text is kept
in the transcript, and never sent back. Normative: docs/behaviour/agent.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from treadle.agent.contract import Message
from treadle.agent.dialects.base import FRAME, REASONING, RESULT, Segment
from treadle.agent.dialects.forms.hermes import CLOSING, OPENING, write_call
from treadle.agent.dialects.functions import HERMES, FunctionsDialect
from treadle.agent.model_types import ChatModel, ModelBinding
from treadle.agent.prompt_strategy import (
    PromptStrategy,
    TextPrompts,
    TokenIdPrompts,
    TokenLimit,
    dropped_stop,
    estimate_kept_tokens,
)
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.transcript import Transcript
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.llm.types import Completion, ToolCall

CONTINUE_MESSAGE = "Go on."
"""Content of the user message that is added if the conversation would otherwise end with an assistant message."""


def make_prompt_strategy(
    engine: ModelBinding,
    messages: Sequence[Mapping[str, str]],
    tools: Sequence[ToolSchema],
    transcript: Transcript,
) -> PromptStrategy:
    """Return the strategy for an engine; `messages` and `tools` are those before the first turn."""
    if engine.chat is not None:
        if isinstance(engine.dialect, FunctionsDialect):
            return FunctionChatPrompts(engine, engine.chat, messages, tools, transcript)
        return ChatPrompts(engine, engine.chat, messages, transcript)
    if engine.codec is not None:
        return TokenIdPrompts(engine, engine.codec, messages, tools, transcript)
    return TextPrompts(engine, messages, tools, transcript)


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
        self.prompt_ids = array("i")

    def max_new_tokens(self) -> tuple[int, TokenLimit]:
        """See `PromptStrategy`. Results count towards the budget once the service has counted them."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        window = most
        if limits.max_model_len is not None:
            window = max(1, limits.max_model_len - self._counted_tokens - (self._num_chars() - self._counted_chars))
        budget = most
        if limits.max_trajectory_tokens is not None:
            budget = limits.max_trajectory_tokens - (self._counted_tokens - (self._first_prompt_tokens or 0))
        return min(most, window, budget), "context_full" if window <= budget else "budget"

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        sampling = self._engine.sampling
        return await self._model.chat(
            conversation(self._first_messages, self._transcript.segments()),
            sampling if max_tokens == sampling.max_tokens else sampling.model_copy(update={"max_tokens": max_tokens}),
            seed=seed,
            session=session,
            deadline=deadline,
            stop=self._engine.dialect.stops,
        )

    def add_completion(self, completion: Completion) -> bool:
        """See `PromptStrategy`."""
        if self._first_prompt_tokens is None:
            self._first_prompt_tokens = completion.prompt_tokens
        if completion.reasoning:
            self._transcript.append_reasoning(completion.reasoning)
            self._reasoning_chars += len(completion.reasoning)
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
        """Return the characters of the next request."""
        sent = len(self._transcript.text) - self._reasoning_chars
        return sum(len(message["content"]) for message in self._first_messages) + sent

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """See `PromptStrategy`; dialects without native calls have no tools to add."""
        self._transcript.append(messages)


class FunctionChatPrompts(ChatPrompts):
    """Requests as chat messages with native tool calls.

    In the transcript, a call of the service stands as a Hermes model would write it, so that calls and their errors are
    read in one way. The service gets its own words and ids back.
    """

    def __init__(
        self,
        engine: ModelBinding,
        model: ChatModel,
        messages: Sequence[Mapping[str, str]],
        tools: Sequence[ToolSchema],
        transcript: Transcript,
    ) -> None:
        super().__init__(engine, model, messages, transcript)
        self._tools = [tool.as_openai() for tool in tools]
        self._messages: list[dict[str, Any]] = [dict(message) for message in messages]
        self._open_calls: list[str] = []

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        sampling = self._engine.sampling
        messages = self._messages
        if messages[-1]["role"] == "assistant":
            messages = [*messages, {"role": "user", "content": CONTINUE_MESSAGE}]
        return await self._model.chat(
            messages,
            sampling if max_tokens == sampling.max_tokens else sampling.model_copy(update={"max_tokens": max_tokens}),
            seed=seed,
            session=session,
            deadline=deadline,
            tools=self._tools,
        )

    def add_completion(self, completion: Completion) -> bool:
        """See `PromptStrategy`; calls that a server left in the text are calls, too."""
        if self._first_prompt_tokens is None:
            self._first_prompt_tokens = completion.prompt_tokens
        if completion.reasoning:
            self._transcript.append_reasoning(completion.reasoning)
            self._reasoning_chars += len(completion.reasoning)
        before = self._num_chars()
        content, calls = completion.text, completion.tool_calls
        if calls:
            # With calls beside it, the text is text: it can spell none.
            written = content.replace(OPENING, "&lt;tool_call>").replace(CLOSING, "&lt;/tool_call>")
            pieces = [written] if written.strip() else []
            text = "\n".join([*pieces, *[write_call(call.name, call.arguments) for call in calls]])
        else:
            text = content
            content, calls = _calls_in_text(content)
            if calls:
                self._transcript.notes["calls_in_text"] += 1
        was_added = self._transcript.append_completion(text, None, completion.completion_tokens)
        self._messages.append(self._assistant_message(content, calls))
        added = self._num_chars() - before
        self._counted_tokens = completion.prompt_tokens + min(completion.completion_tokens, added)
        self._counted_chars = before + added
        return was_added

    def _assistant_message(self, content: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        if not calls:
            return {"role": "assistant", "content": content}
        turn = len(self._messages)
        self._open_calls = [call.id or f"call_{turn}_{number}" for number, call in enumerate(calls)]
        sent = [
            {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": _sent_arguments(call)}}
            for call_id, call in zip(self._open_calls, calls, strict=True)
        ]
        return {"role": "assistant", "content": content or None, "tool_calls": sent}

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """See `PromptStrategy`; the results of a turn's calls come in the order of the calls."""
        self._transcript.append(messages)
        self._tools += [tool.as_openai() for tool in tools]
        ids = iter(self._open_calls)
        self._open_calls = []
        for message in messages:
            sent = {"role": message.role, "content": message.text}
            call = next(ids, None) if message.role == "tool" else None
            self._messages.append({"role": "user", "content": message.text} if message.role == "block" else sent)
            if call is not None:
                self._messages[-1]["tool_call_id"] = call
            elif message.role == "tool":
                self._messages[-1]["role"] = "user"  # it answers no call of the service
        for call in ids:
            # Services refuse a conversation in which a call has no answer.
            self._messages.append({"role": "tool", "content": "", "tool_call_id": call})


def _sent_arguments(call: ToolCall) -> str:
    """Return the arguments to send back: some servers refuse a conversation with arguments that are no JSON object."""
    try:
        is_object = isinstance(orjson.loads(call.arguments), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return call.arguments if is_object else orjson.dumps({"invalid": call.arguments}).decode()


def _calls_in_text(content: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Return text and calls of a turn whose calls the server did not parse."""
    found = HERMES.find(content)
    if not found:
        return content, ()
    calls = [ToolCall("", call.name, orjson.dumps(call.arguments).decode()) for call in found]
    return content[: found[0].start].rstrip(), tuple(calls)


def conversation(first_messages: Sequence[Mapping[str, str]], segments: Iterable[Segment]) -> list[dict[str, str]]:
    """Return `first_messages`, which ends with a user message, followed by the assistant turn as messages.

    Results become user messages, messages keep their role, and model text becomes assistant messages. The author of a
    segment comes from `Transcript.segments`, never from the text.
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
        turns.append({"role": "user", "content": CONTINUE_MESSAGE})
    return [*({"role": message["role"], "content": message["content"]} for message in first_messages), *turns]
