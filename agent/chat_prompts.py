"""Build the model requests of one rollout as chat messages, for services that render the conversation themselves.

Without native tool calls, the service receives the assistant's turn as a conversation: the model's own text as
assistant messages, tool results as user messages. No tool output can end up in an assistant message. With native tool
calls, calls and results go back as the service returned them. Reasoning that a service returns outside the text is kept
in the transcript. It is sent back only to a service that demands it. Normative: docs/behaviour/agent.md.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from treadle.agent.continuation import continued_turn
from treadle.agent.contract import Message, call_id
from treadle.agent.dialects.base import FRAME, REASONING, RESULT, Segment
from treadle.agent.dialects.forms.base import INVALID_NAME
from treadle.agent.dialects.forms.hermes import CLOSING, OPENING, write_call
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.model_types import ChatModel, ModelBinding
from treadle.agent.prompt_strategy import (
    PromptStrategy,
    TextPrompts,
    TokenIdPrompts,
    TokenLimit,
    dropped_stop,
    estimate_kept_tokens,
)
from treadle.agent.tools.schema import NAME_PATTERN, ToolSchema
from treadle.agent.transcript import Transcript
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, ToolCall

CONTINUE_MESSAGE = "Go on."
"""Content of the user message that is added if the conversation would otherwise end with an assistant message."""
CONTINUE_BEGUN_MESSAGE = (
    "Continue your last message exactly where it ends. Write only what follows, and repeat nothing."
)
"""The same after a turn that was begun for the model: an operator edited it, or another rollout was its prefix."""
_CONTINUE = {"role": "user", "content": CONTINUE_MESSAGE}
_NO_ANSWER = "(no output)"
_NO_NAME = re.compile("[^A-Za-z0-9_-]")


def make_prompt_strategy(
    engine: ModelBinding,
    messages: Sequence[Mapping[str, str]],
    tools: Sequence[ToolSchema],
    transcript: Transcript,
) -> PromptStrategy:
    """Return the strategy for an engine; `messages` and `tools` are those before the first turn."""
    if engine.chat is not None:
        if isinstance(engine.dialect, FunctionsDialect):
            return FunctionChatPrompts(engine, engine.dialect, engine.chat, messages, tools, transcript)
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
        self._is_begun = bool(transcript.text)
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
        go_on = CONTINUE_BEGUN_MESSAGE if self._begun_text else CONTINUE_MESSAGE
        return await self._model.chat(
            conversation(self._first_messages, self._transcript.segments(), go_on),
            self._sampling(max_tokens),
            seed=seed,
            session=session,
            deadline=deadline,
            stop=self._engine.dialect.stops,
        )

    @property
    def _begun_text(self) -> str:
        """Beginning of the next turn, which the prefix of the rollout ends with; empty if the turn starts afresh."""
        return self._transcript.open_text if self._is_begun else ""

    def _sampling(self, max_tokens: int) -> Sampling:
        sampling = self._engine.sampling
        return sampling if max_tokens == sampling.max_tokens else sampling.model_copy(update={"max_tokens": max_tokens})

    def _add_reasoning(self, completion: Completion) -> None:
        """Keep reasoning that the service returned outside the text; note the tokens of the first prompt."""
        if self._first_prompt_tokens is None:
            self._first_prompt_tokens = completion.prompt_tokens
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
        """Return the characters of the next request."""
        sent = len(self._transcript.text) - (0 if self._engine.returns_reasoning else self._reasoning_chars)
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
        dialect: FunctionsDialect,
        model: ChatModel,
        messages: Sequence[Mapping[str, str]],
        tools: Sequence[ToolSchema],
        transcript: Transcript,
    ) -> None:
        super().__init__(engine, model, messages, transcript)
        self._dialect = dialect
        self._tools: list[dict[str, Any]] = []
        self._tool_chars = 0
        self._add_tools(tools)
        self._messages: list[dict[str, Any]] = [dict(message) for message in messages]
        self._open_calls: dict[str, str] = {}

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        messages = self._messages
        if messages[-1]["role"] == "assistant":
            messages = [*messages, _CONTINUE]
        return await self._model.chat(
            messages,
            self._sampling(max_tokens),
            seed=seed,
            session=session,
            deadline=deadline,
            tools=self._tools,
        )

    def add_completion(self, completion: Completion) -> bool:
        """See `PromptStrategy`; calls that a server left in the text are calls, too."""
        self._add_reasoning(completion)
        before = self._num_chars()
        content, calls = completion.text, completion.tool_calls
        if calls:
            text = "\n".join(
                [*_text_next_to_calls(content), *[write_call(call.name, call.arguments) for call in calls]]
            )
        else:
            text = content
            content, calls = self._calls_in_text(content)
            if calls:
                self._transcript.note("calls_in_text")
        was_added = self._transcript.append_completion(text, None, completion.completion_tokens)
        if content or calls:
            self._add_turn(content, calls, completion.reasoning)
        added = self._num_chars() - before
        self._counted_tokens = completion.prompt_tokens + min(completion.completion_tokens, added)
        self._counted_chars = before + added
        return was_added

    def _num_chars(self) -> int:
        """Return the characters of the next request, with its tools."""
        return super()._num_chars() + self._tool_chars

    def _calls_in_text(self, content: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Return text and calls of a turn whose calls the server did not parse."""
        found = self._dialect.calls_of(content)
        if not found:
            return content, ()
        calls = [ToolCall("", call.name, orjson.dumps(call.arguments).decode()) for call in found]
        return content[: found[0].start].rstrip(), tuple(calls)

    def _add_turn(self, content: str, calls: Sequence[ToolCall], reasoning: str) -> None:
        if self._messages[-1]["role"] == "assistant":
            self._messages.append(_CONTINUE)  # as it was asked
        returned = {"reasoning_content": reasoning} if self._engine.returns_reasoning else {}
        if not calls:
            self._messages.append({"role": "assistant", "content": content, **returned})
            return
        turn = len(self._messages)
        given = [call.id for call in calls]
        is_usable = all(given) and len(set(given)) == len(given)
        # Nine letters and digits: templates of Mistral refuse other ids.
        ids = given if is_usable else [f"call{turn:03d}{number:02d}" for number in range(len(calls))]
        self._open_calls = dict(zip(_call_suffixes(calls), ids, strict=True))
        sent = [
            {
                "id": identity,
                "type": "function",
                "function": {"name": self._sent_name(call), "arguments": _sent_arguments(call)},
            }
            for identity, call in zip(ids, calls, strict=True)
        ]
        self._messages.append({"role": "assistant", "content": content or None, "tool_calls": sent, **returned})

    def _sent_name(self, call: ToolCall) -> str:
        """Return the name to send back: services refuse names that they would take for no tool."""
        if any(tool["function"]["name"] == call.name for tool in self._tools):
            return call.name
        return _NO_NAME.sub("_", call.name)[:64] or INVALID_NAME

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """See `PromptStrategy`; the result of each call comes before other messages, as services demand."""
        self._transcript.append(messages)
        self._add_tools(tools)
        open_calls, self._open_calls = self._open_calls, {}
        results: dict[str, str] = {}
        others: list[dict[str, Any]] = []
        for message in messages:
            call = message.call.partition(".")[2]
            if message.role == "tool" and not message.call:
                call = next((key for key in open_calls if key not in results), "")
            if message.role == "tool" and call in open_calls and call not in results:
                results[call] = message.text
            else:
                # One of role `tool` that answers no call of the service is the user's.
                role = "system" if message.role == "system" else "user"
                others.append({"role": role, "content": message.text})
        for key, identity in open_calls.items():
            # Services refuse a conversation in which a call has no answer.
            answer = {"role": "tool", "content": results.get(key, _NO_ANSWER), "tool_call_id": identity}
            self._messages.append(answer)
        self._messages += others

    def _add_tools(self, tools: Sequence[ToolSchema]) -> None:
        added = [tool.as_openai() for tool in tools]
        self._tools += added
        self._tool_chars += sum([len(orjson.dumps(tool)) for tool in added])


def _text_next_to_calls(content: str) -> list[str]:
    """Return the text of an answer with calls outside it: it spells no call, and hides none in open reasoning."""
    if not content.strip():
        return []
    text = content.replace(OPENING, "&lt;tool_call>").replace(CLOSING, "&lt;/tool_call>")
    return [text, "</think>"] if text.lstrip().startswith("<think>") and "</think>" not in text else [text]


def _call_suffixes(calls: Sequence[ToolCall]) -> list[str]:
    """Return the part after the turn of the ids that the dialect gives to calls."""
    numbers: Counter[str] = Counter()
    suffixes = []
    for call in calls:
        name = call.name if NAME_PATTERN.fullmatch(call.name) else INVALID_NAME
        suffixes.append(call_id(0, name, numbers[name]).partition(".")[2])
        numbers[name] += 1
    return suffixes


def _sent_arguments(call: ToolCall) -> str:
    """Return the arguments to send back: some servers refuse a conversation with arguments that are no JSON object."""
    try:
        is_object = isinstance(orjson.loads(call.arguments), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return call.arguments if is_object else orjson.dumps({"invalid": call.arguments}).decode()


def conversation(
    first_messages: Sequence[Mapping[str, str]], segments: Iterable[Segment], go_on: str = CONTINUE_MESSAGE
) -> list[dict[str, str]]:
    """Return `first_messages`, which ends with a user message, followed by the assistant turn as messages.

    `go_on` is added if they would end with the model's text. Results become user messages, messages keep their role,
    and model text becomes assistant messages. The author of a segment comes from `Transcript.segments`, never from the
    text.
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
