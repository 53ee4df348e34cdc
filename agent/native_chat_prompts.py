"""Build the requests of one rollout with native tool calls over the chat route, and choose the strategy of an engine.

Calls are sent back with the ids and arguments that the service returned. A rollout that continues a prefix builds its
messages from the segments of the prefix; if the prefix ends inside a turn, the service gets that beginning as a message
to continue. Normative: docs/behaviour/agent.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import orjson

from treadle.agent.chat_prompts import CONTINUE_BEGUN_MESSAGE, CONTINUE_MESSAGE, ChatPrompts
from treadle.agent.continuation import joined_reply
from treadle.agent.contract import Message, call_id
from treadle.agent.dialects.base import REASONING, TOOL_CALL, Segment
from treadle.agent.dialects.forms.base import INVALID_NAME
from treadle.agent.dialects.forms.hermes import escape_calls, write_call
from treadle.agent.dialects.functions import FunctionsDialect, bare_reasoning, opens_thought
from treadle.agent.model_types import ChatModel, ModelBinding
from treadle.agent.prompt_strategy import PromptStrategy, TextPrompts, TokenIdPrompts
from treadle.agent.tools.schema import NAME_PATTERN, ToolSchema
from treadle.agent.transcript import Transcript
from treadle.agent.trimming import Trimming
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.llm.types import Completion, ToolCall

_CONTINUE = {"role": "user", "content": CONTINUE_MESSAGE}
_CONTINUE_BEGUN = {"role": "user", "content": CONTINUE_BEGUN_MESSAGE}
_NO_ANSWER = "(no output)"
_NO_NAME = re.compile("[^A-Za-z0-9_-]")


class FunctionChatPrompts(ChatPrompts):
    """Requests as chat messages with native tool calls.

    In the transcript, calls of the service are written in the form of Hermes models, so that all calls and their errors
    are read in one way. The service gets back its own text and its own ids of calls.
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
        self._used_ids: set[str] = set()
        self._add_prefix(transcript.segments())

    def _add_prefix(self, segments: Sequence[Segment]) -> None:
        """Add the messages of a prefix, except for a last turn without calls, which is unfinished or an answer."""
        for is_written, group in groupby(segments, key=lambda segment: segment.kind in SYSTEM_KINDS):
            turn = list(group)
            if is_written:
                self._write([Message(one.text, one.kind) for one in turn])  # type: ignore[arg-type]
                continue
            calls = [_sent_again(one, self._dialect) for one in turn if one.kind == TOOL_CALL]
            reasoning = "".join(one.text for one in turn if one.kind == REASONING)
            if not self._engine.returns_reasoning:
                self._reasoning_chars += len(reasoning)
            if calls or turn[-1] is not segments[-1]:
                said = "".join(one.text for one in turn if one.kind not in (REASONING, TOOL_CALL)).strip()
                self._add_turn(said, calls, bare_reasoning(reasoning))

    def find_trim(self, trimming: Trimming) -> list[int] | None:
        """Return None: services demand the whole conversation, each call with its result."""
        return None

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        messages = self._messages
        if begun := self._begun_text:
            messages = [*messages, {"role": "assistant", "content": bare_reasoning(begun)}, _CONTINUE_BEGUN]
        elif messages[-1]["role"] == "assistant":
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
        begun, self._is_begun = self._begun_text, False
        before = self._num_chars()
        content, calls, reasoning = completion.text, completion.tool_calls, completion.reasoning
        rest = content
        if not calls:
            content, calls = self._calls_in_text(content)
            if calls:
                self._transcript.note("calls_in_text")
        elif not begun:
            rest = _turn_text(content, calls)
        if begun:
            self._note_first_prompt(completion)
            rest, content, reasoning = continued_native_turn(begun, content, calls, reasoning)
        else:
            self._add_reasoning(completion)
        was_added = self._transcript.append_completion(rest, None, completion.completion_tokens)
        if content or calls:
            self._add_turn(content, calls, reasoning)
        added = self._num_chars() - before
        self._counted_tokens = completion.prompt_tokens + min(completion.completion_tokens, added)
        self._counted_chars = before + added
        return was_added

    def _num_chars(self) -> int:
        """Return the number of characters of the next request, schemas of tools included."""
        return super()._num_chars() + self._tool_chars

    def _calls_in_text(self, content: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the text before the calls that a server left in `content`, and the calls; all text and () without."""
        found = self._dialect.calls_of(content)
        if not found:
            return content, ()
        calls = [ToolCall("", call.name, orjson.dumps(call.arguments).decode()) for call in found]
        return content[: found[0].start].rstrip(), tuple(calls)

    def _add_turn(self, content: str, calls: Sequence[ToolCall], reasoning: str) -> None:
        if self._messages[-1]["role"] == "assistant":
            self._messages.append(_CONTINUE)  # the request ended with this message, too
        returned = {"reasoning_content": reasoning} if self._engine.returns_reasoning else {}
        if not calls:
            self._messages.append({"role": "assistant", "content": content, **returned})
            return
        turn = len(self._messages)
        given = [call.id for call in calls]
        is_usable = all(given) and len(set(given)) == len(given) and self._used_ids.isdisjoint(given)
        # Nine letters and digits: templates of Mistral refuse other ids.
        ids = given if is_usable else [f"call{turn:03d}{number:02d}" for number in range(len(calls))]
        self._used_ids.update(ids)
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
        """Return the name of a call to send back: services refuse names with characters that tool names cannot have."""
        if any(tool["function"]["name"] == call.name for tool in self._tools):
            return call.name
        return _NO_NAME.sub("_", call.name)[:64] or INVALID_NAME

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """See `PromptStrategy`; the result of each call comes before other messages, as services demand."""
        self._transcript.append(messages)
        self._add_tools(tools)
        self._write(messages)

    def _write(self, messages: Sequence[Message]) -> None:
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
                # A message of role `tool` that answers no open call is sent as a user message.
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


def continued_native_turn(begun: str, content: str, calls: Sequence[ToolCall], reasoning: str) -> tuple[str, str, str]:
    """Return the text to append to `begun`, the given beginning of a turn, and content and reasoning of the whole turn.

    If the beginning ends in an open thought, the reply's reasoning continues the thought, which is then closed. If a
    reply has calls but no reasoning, its text continues the thought. Any other beginning is continued by the reply's
    reasoning and text together.
    """
    words = bare_reasoning(begun)
    if content.lstrip().startswith("<think>"):  # of a server that leaves reasoning in the text
        inside, _, content = content.lstrip().removeprefix("<think>").partition("</think>")
        reasoning, content = f"{reasoning}\n{inside}".strip(), content.strip()
    if not opens_thought(begun):
        said = "\n\n".join(filter(None, [reasoning.strip(), content]))
        rest = joined_reply(words, said)
        return _after(rest, calls) if calls else rest, words + rest, ""
    if calls and not reasoning.strip():
        reasoning, content = content, ""
    rest = joined_reply(words, reasoning.replace("</think>", "").rstrip()) if reasoning.strip() else ""
    turn = _turn_text(content, calls) if calls else content
    return f"{rest}\n</think>\n\n{turn}", content, words + rest


def _after(said: str, calls: Sequence[ToolCall]) -> str:
    return "\n".join([escape_calls(said), *[write_call(call.name, call.arguments) for call in calls]])


def _turn_text(content: str, calls: Sequence[ToolCall]) -> str:
    """Return the text of a turn with calls, as a Hermes model writes it."""
    return "\n".join([*_text_next_to_calls(content), *[write_call(call.name, call.arguments) for call in calls]])


def _sent_again(segment: Segment, dialect: FunctionsDialect) -> ToolCall:
    """Return the call in a segment of a prefix. Its id is empty, since segments do not contain the service's ids."""
    (call,) = dialect.form.find(segment.text)
    return ToolCall("", call.name, segment.text if call.error else orjson.dumps(call.arguments).decode())


def _text_next_to_calls(content: str) -> list[str]:
    """Return the lines to write before native calls: the text, with calls in it escaped and open reasoning closed."""
    if not content.strip():
        return []
    text = escape_calls(content)
    return [text, "</think>"] if text.lstrip().startswith("<think>") and "</think>" not in text else [text]


def _call_suffixes(calls: Sequence[ToolCall]) -> list[str]:
    """Return each call's id (see `contract.call_id`) without its turn, such as `search_0` for `t3.search_0`."""
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
