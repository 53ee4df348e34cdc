"""Build the model requests of one rollout, as token ids or as text.

The transcript is the same over all routes. With ids and with text, the model continues the context as one growing
completion; for requests as chat messages see `treadle.agent.chat_prompts`. Normative: docs/behaviour/agent.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Protocol

from treadle.agent.contract import Message
from treadle.agent.dialects.base import Dialect, Segment
from treadle.agent.model_types import ChatCodec, ModelBinding
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.transcript import Transcript
from treadle.agent.trimming import Trimming
from treadle.core.errors import ModelError
from treadle.core.llm.types import Completion, CompletionRequest

TokenLimit = Literal["context_full", "budget"]
"""Limit in tokens that truncates a turn: the context window, or the budget of the trajectory.

A rollout that reaches a limit has the limit's name as its status.
"""


class PromptStrategy(Protocol):
    """Strategy that builds requests from the transcript of one rollout and adds the completions to it."""

    @property
    def prompt_ids(self) -> array[int]:
        """Token ids before the assistant turn; empty if requests carry no ids."""
        ...

    def max_new_tokens(self) -> tuple[int, TokenLimit]:
        """Return the most new tokens of the next turn, and the limit that is reached if that number is below 1."""
        ...

    def find_trim(self, trimming: Trimming) -> list[int] | None:
        """Return the numbers of the segments to show from now on; None if the window has room for the next turn, or
        nothing can be left out.
        """
        ...

    def trim(self, kept: Sequence[int], texts: Mapping[int, str] = MappingProxyType({})) -> None:
        """From now on, show only the segments numbered `kept`, and those added later; see `Transcript.trim`."""
        ...

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """Request the next completion from the model. Raises ModelError and its subclasses."""
        ...

    def add_completion(self, completion: Completion) -> bool:
        """Append a new or cached completion to the transcript; return whether it added anything.

        Raises ModelError if the completion does not fit the mode, for example if it has no token ids.
        """
        ...

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """Append what the environment wrote, and tell the model of tools that it may call from now on."""
        ...


class WrittenPrompts:
    """Base of the strategies that render the whole context: messages of the environment go into the transcript."""

    def __init__(self, engine: ModelBinding, transcript: Transcript) -> None:
        self._engine = engine
        self._transcript = transcript

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """See `PromptStrategy`; new tools are announced in a message of their own, after the others."""
        dialect = self._engine.dialect
        told = dialect.added_tools(tools) if tools else None
        self._transcript.append(dialect.replies([*messages, told] if told is not None else messages))


class TokenIdPrompts(WrittenPrompts):
    """Requests as token ids: the prompt's ids followed by those of the turn, exactly as sampled."""

    def __init__(
        self,
        engine: ModelBinding,
        codec: ChatCodec,
        messages: Sequence[Mapping[str, str]],
        tools: Sequence[ToolSchema],
        transcript: Transcript,
    ) -> None:
        super().__init__(engine, transcript)
        self._codec = codec
        self.prompt_ids = array("i", engine.prompt_ids(messages, tools))

    def max_new_tokens(self) -> tuple[int, TokenLimit]:
        """See `PromptStrategy`."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        if len(self.prompt_ids) > limits.max_prompt_tokens:
            return 0, "context_full"
        free, used = self._free_tokens(), len(self._transcript.ids)
        window = most if free is None else free
        budget = most if limits.max_trajectory_tokens is None else limits.max_trajectory_tokens - used
        return min(most, window, budget), "context_full" if window <= budget else "budget"

    def _free_tokens(self) -> int | None:
        window = self._engine.limits.max_model_len
        return None if window is None else window - len(self.prompt_ids) - len(self._transcript.shown_ids)

    def find_trim(self, trimming: Trimming) -> list[int] | None:
        """See `PromptStrategy`."""
        return segments_to_show(self._transcript, trimming, self._free_tokens(), lambda one: one.end - one.start)

    def trim(self, kept: Sequence[int], texts: Mapping[int, str] = MappingProxyType({})) -> None:
        """See `PromptStrategy`."""
        self._transcript.trim(kept, texts)

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        ids = (self.prompt_ids + self._transcript.shown_ids).tolist()
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


class TextPrompts(WrittenPrompts):
    """Requests as text: the rendered prompt followed by the text of the turn.

    The room that is left in the window is an estimate; the server decides whether a request fits.
    """

    def __init__(
        self,
        engine: ModelBinding,
        messages: Sequence[Mapping[str, str]],
        tools: Sequence[ToolSchema],
        transcript: Transcript,
    ) -> None:
        super().__init__(engine, transcript)
        self._prompt = engine.render(messages, tools)
        self._server_tokens = 0
        self._server_chars = 0
        self.prompt_ids = array("i")

    def max_new_tokens(self) -> tuple[int, TokenLimit]:
        """See `PromptStrategy`."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        window = most
        if limits.max_model_len is not None:
            window = limits.max_model_len - self._context_tokens()
            if self._engine.renderer is None:
                used = self._num_tokens(self._prompt + self._transcript.shown_text)
                window = tokens_to_ask(window, limits.max_model_len - used, limits.trimming)
        # An estimate must not end the rollout: the server rejects a prompt that does not fit.
        return max(1, min(most, window)), "context_full"

    def _context_tokens(self) -> int:
        """Return the context length in tokens.

        Without a tokenizer this is an upper bound: the server's last count plus one token per character added since.
        """
        text = self._prompt + self._transcript.shown_text
        if self._engine.renderer is not None:
            return len(self._engine.renderer.encode(text))
        return self._server_tokens + len(text) - self._server_chars

    def find_trim(self, trimming: Trimming) -> list[int] | None:
        """See `PromptStrategy`."""
        window = self._engine.limits.max_model_len
        free = None if window is None else window - self._num_tokens(self._prompt + self._transcript.shown_text)
        return segments_to_show(self._transcript, trimming, free, lambda one: self._num_tokens(one.text))

    def _num_tokens(self, text: str) -> int:
        """Return the number of tokens of a text; without a tokenizer, estimate it from the server's last count."""
        if self._engine.renderer is not None:
            return len(self._engine.renderer.encode(text))
        return estimate_tokens(len(text), self._server_tokens, self._server_chars)

    def trim(self, kept: Sequence[int], texts: Mapping[int, str] = MappingProxyType({})) -> None:
        """See `PromptStrategy`."""
        self._transcript.trim(kept, texts)
        num_chars = len(self._prompt) + len(self._transcript.shown_text)
        self._server_tokens = estimate_tokens(num_chars, self._server_tokens, self._server_chars)
        self._server_chars = num_chars

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `PromptStrategy`."""
        text = self._prompt + self._transcript.shown_text
        return await _complete(self._engine, text, max_tokens, seed, session, deadline)

    def add_completion(self, completion: Completion) -> bool:
        """See `PromptStrategy`."""
        before = len(self._transcript.shown_text)
        marker = dropped_stop(self._transcript.open_text, completion, self._engine.dialect)
        was_added = self._transcript.append_completion(completion.text, None, completion.completion_tokens, marker)
        kept = min(len(self._transcript.shown_text) - before, len(completion.text))
        self._server_tokens = completion.prompt_tokens + estimate_kept_tokens(completion, kept)
        self._server_chars = len(self._prompt) + before + kept
        return was_added


def segments_to_show(
    transcript: Transcript, trimming: Trimming, free: int | None, length: Callable[[Segment], int]
) -> list[int] | None:
    """Return the numbers of the segments to show; see `PromptStrategy.find_trim`.

    `free` is the number of tokens that are left in the window, or None if that is unknown. `length` returns the number
    of tokens of a segment. Inside a turn the context is not trimmed.
    """
    if free is None or free >= trimming.reserve_tokens or transcript.open_text:
        return None
    segments = transcript.shown_segments()
    lengths = [length(one) for one in segments]
    kept = trimming.kept(segments, lengths, free + sum(lengths) - trimming.reserve_tokens)
    if sum(lengths[place] for place in kept) == sum(lengths):
        return None
    numbers = transcript.shown_numbers()
    return [numbers[place] for place in kept]


def tokens_to_ask(free: int, estimated: int, trimming: Trimming | None) -> int:
    """Return the most new tokens to request, from two counts of the tokens left in the window.

    `free` are certainly left, `estimated` are probably left. Without trimming, only `free` counts. With trimming, up to
    `reserve_tokens` of the estimate may be requested, since trims keep that many free.
    """
    return free if trimming is None else max(free, min(estimated, trimming.reserve_tokens))


def estimate_tokens(num_chars: int, known_tokens: int, known_chars: int) -> int:
    """Estimate the tokens of a text with `num_chars` characters, rounded up.

    Uses the ratio of `known_tokens` to `known_chars`; one token per character if `known_chars` is 0.
    """
    return -(-num_chars * known_tokens // known_chars) if known_chars else num_chars


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
    """Estimate the tokens of the first `num_chars` characters of a completion as their share of it, rounded up."""
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
