"""Build the model requests of one rollout: as token ids, as text, or as chat messages.

The transcript is the same in all three modes. With ids and with text, the model continues the assistant turn as one
growing completion. A chat-only service receives the turn as a conversation: the model's own text as assistant messages,
tool results as user messages. No tool output can end up in an assistant message. Normative: docs/behaviour/agent.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from treadle.agent.dialects.base import FRAME, RESULT, Dialect, Segment
from treadle.agent.model_types import ChatCodec, ChatModel, ModelBinding
from treadle.agent.transcript import Transcript
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.errors import ModelError
from treadle.core.llm.types import Completion, CompletionRequest

CONTINUE_MESSAGE = "Go on."
"""Content of the user message that is added if the conversation would otherwise end with an assistant message."""


TokenLimit = Literal["context_full", "budget"]
"""Limit in tokens that truncates a turn: the context window, or the budget of the trajectory. Also a status."""


class PromptStrategy(Protocol):
    """Strategy that builds requests from the transcript of one rollout and adds the completions to it."""

    @property
    def prompt_ids(self) -> array[int]:
        """Token ids before the assistant turn; empty if requests carry no ids."""
        ...

    def max_new_tokens(self) -> tuple[int, TokenLimit]:
        """Return the most new tokens of the next turn, and the limit that is reached if that number is below 1."""
        ...

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """Request the next completion from the model. Raises ModelError and its subclasses."""
        ...

    def add_completion(self, completion: Completion) -> bool:
        """Append a new or cached completion to the transcript; return whether it added anything.

        Raises ModelError if the completion does not fit the mode, for example if it has no token ids.
        """
        ...


def make_prompt_strategy(
    engine: ModelBinding, messages: Sequence[Mapping[str, str]], transcript: Transcript
) -> PromptStrategy:
    """Return the strategy for an engine; `messages` are those before the assistant turn."""
    if engine.chat is not None:
        return ChatPrompts(engine, engine.chat, messages, transcript)
    if engine.codec is not None:
        return TokenIdPrompts(engine, engine.codec, messages, transcript)
    return TextPrompts(engine, messages, transcript)


class TokenIdPrompts:
    """Requests as token ids: the prompt's ids followed by those of the turn, exactly as sampled."""

    def __init__(
        self, engine: ModelBinding, codec: ChatCodec, messages: Sequence[Mapping[str, str]], transcript: Transcript
    ) -> None:
        self._engine = engine
        self._codec = codec
        self._transcript = transcript
        self.prompt_ids = array("i", codec.prompt_ids(messages))

    def max_new_tokens(self) -> tuple[int, TokenLimit]:
        """See `PromptStrategy`."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        used = len(self._transcript.ids)
        window = most if limits.max_model_len is None else limits.max_model_len - len(self.prompt_ids) - used
        budget = most if limits.max_trajectory_tokens is None else limits.max_trajectory_tokens - used
        return min(most, window, budget), "context_full" if window <= budget else "budget"

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        ids = (self.prompt_ids + self._transcript.ids).tolist()
        completion = await _complete(self._engine, ids, max_tokens, seed, session, deadline)
        if completion.token_ids is None:
            raise ModelError(f"{completion.endpoint} gave an answer without token ids; set token_ids to off")
        return completion

    def add_completion(self, completion: Completion) -> bool:
        """See `PromptStrategy`."""
        if completion.token_ids is None:
            raise ModelError(
                "this rollout was started in text mode; set token_ids to off, or run the stage with --force"
            )
        if not completion.stop_dropped:  # the usual case
            return self._transcript.append_completion(
                completion.text, completion.token_ids, completion.completion_tokens
            )
        marker = dropped_stop(self._transcript.open_text, completion, self._engine.dialect)
        ended = completion.token_ids[-1:] and completion.token_ids[-1] in self._codec.eos_ids
        if ended and completion.stop_reason != marker:
            marker = ""  # an end-of-turn id ended the answer, not a stop string
        return self._transcript.append_completion(
            completion.text, completion.token_ids, completion.completion_tokens, marker
        )


class TextPrompts:
    """Requests as text: the rendered prompt followed by the text of the turn.

    The limit is an estimate. Whether a request fits is decided by the server.
    """

    def __init__(self, engine: ModelBinding, messages: Sequence[Mapping[str, str]], transcript: Transcript) -> None:
        self._engine = engine
        self._transcript = transcript
        self._prompt = engine.render(messages)
        self._server_tokens = 0
        self._server_chars = 0
        self.prompt_ids = array("i")

    def max_new_tokens(self) -> tuple[int, TokenLimit]:
        """See `PromptStrategy`."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        window = most if limits.max_model_len is None else limits.max_model_len - self._context_tokens()
        # An estimate must not end the rollout: the server rejects a prompt that does not fit.
        return max(1, min(most, window)), "context_full"

    def _context_tokens(self) -> int:
        """Return the context length in tokens.

        Without a tokenizer this is an upper bound: the server's last count plus one token per character added since.
        """
        text = self._prompt + self._transcript.text
        if self._engine.renderer is not None:
            return len(self._engine.renderer.encode(text))
        return self._server_tokens + len(text) - self._server_chars

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        text = self._prompt + self._transcript.text
        return await _complete(self._engine, text, max_tokens, seed, session, deadline)

    def add_completion(self, completion: Completion) -> bool:
        """See `PromptStrategy`."""
        before = len(self._transcript.text)
        marker = dropped_stop(self._transcript.open_text, completion, self._engine.dialect)
        was_added = self._transcript.append_completion(completion.text, None, completion.completion_tokens, marker)
        kept = min(len(self._transcript.text) - before, len(completion.text))
        self._server_tokens = completion.prompt_tokens + estimate_kept_tokens(completion, kept)
        self._server_chars = len(self._prompt) + before + kept
        return was_added


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
        return sum(len(message["content"]) for message in self._first_messages) + len(self._transcript.text)


def conversation(first_messages: Sequence[Mapping[str, str]], segments: Iterable[Segment]) -> list[dict[str, str]]:
    """Return `first_messages`, which ends with a user message, followed by the assistant turn as messages.

    Results become user messages, messages keep their role, and model text becomes assistant messages. The author of a
    segment comes from `Transcript.segments`, never from the text.
    """
    turns: list[dict[str, str]] = []
    for segment in segments:
        if segment.kind == FRAME:
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


def dropped_stop(before: str, completion: Completion, dialect: Dialect) -> str:
    """Return the closing marker that ended generation if the server left it out of the text; else an empty string.

    The marker is the one that the server names, else that of the block that is open at the end of the text. `before` is
    the model text since the last result.
    """
    if not completion.stop_dropped:
        return ""
    text = before + completion.text
    if dialect.is_stopped(text):
        return ""
    if completion.stop_reason in dialect.stops:
        return str(completion.stop_reason)
    return dialect.open_marker(text)


def estimate_kept_tokens(completion: Completion, num_chars: int) -> int:
    """Return the tokens of the first `num_chars` characters of a truncated completion: their share, rounded up."""
    total_chars = len(completion.text)
    if num_chars >= total_chars:
        return completion.completion_tokens
    return -(-completion.completion_tokens * num_chars // total_chars)


async def _complete(
    engine: ModelBinding, prompt: list[int] | str, max_tokens: int, seed: int, session: str, deadline: float
) -> Completion:
    request = CompletionRequest(
        prompt=prompt, max_tokens=max_tokens, sampling=engine.sampling, stop=engine.dialect.stops, seed=seed
    )
    answer = engine.model.complete(request, session=session, deadline=deadline)
    del request, prompt  # thousands of requests wait at once: free the ids while the server generates
    return await answer
