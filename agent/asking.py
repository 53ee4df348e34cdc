"""How one rollout asks its model for the next turn, given the assistant's turn so far: as ids, as text, as messages.

What stands in the transcript is the same in all three. With ids and text the model goes on from the turn as one growing
completion. A service that only chats is shown the turn as a conversation: its own text as its messages, each result as
a message of the user, in which nothing can pass for the model's. Normative: docs/behaviour/agent.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from treadle.agent.protocol import RESULT, Segment, tokenise
from treadle.agent.protocol import Protocol as Tags
from treadle.agent.transcript import Transcript
from treadle.core.errors import ModelError
from treadle.core.llm.types import Completion, CompletionRequest

if TYPE_CHECKING:
    from treadle.agent.rollout import ChatCodec, ChatModel, RolloutEngine

GO_ON = "Go on."
"""What the user says where the model is to say more and nothing came in between: a conversation cannot end with it."""


class Asking(Protocol):
    """The way of one rollout."""

    @property
    def prompt_ids(self) -> array[int]:
        """Ids before the assistant's turn; empty where there are none."""
        ...

    def room(self) -> tuple[int, str]:
        """Most new tokens of the next turn, and the status if they do not suffice."""
        ...

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """The model's next words; raises ModelError and its subclasses."""
        ...

    def take(self, completion: Completion) -> bool:
        """Put a new or remembered answer into the transcript; whether it said anything.

        Raises ModelError for an answer of a wrong kind.
        """
        ...


def asking_of(engine: RolloutEngine, messages: Sequence[Mapping[str, str]], transcript: Transcript) -> Asking:
    """The way that an engine asks, with the messages before the assistant's turn."""
    if engine.chat is not None:
        return Chat(engine, engine.chat, messages, transcript)
    if engine.codec is not None:
        return Ids(engine, engine.codec, messages, transcript)
    return Text(engine, messages, transcript)


class Ids:
    """The prompt's ids followed by the turn's, all exact."""

    def __init__(
        self, engine: RolloutEngine, codec: ChatCodec, messages: Sequence[Mapping[str, str]], transcript: Transcript
    ) -> None:
        self._engine = engine
        self._transcript = transcript
        self.prompt_ids = array("i", codec.prompt_ids(messages))

    def room(self) -> tuple[int, str]:
        """See `Asking`."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        used = len(self._transcript.ids)
        window = most if limits.max_model_len is None else limits.max_model_len - len(self.prompt_ids) - used
        budget = most if limits.max_trajectory_tokens is None else limits.max_trajectory_tokens - used
        return min(most, window, budget), "context_full" if window <= budget else "budget"

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `Asking`."""
        ids = (self.prompt_ids + self._transcript.ids).tolist()
        completion = await _complete(self._engine, ids, max_tokens, seed, session, deadline)
        if completion.token_ids is None:
            raise ModelError(f"{completion.endpoint} gave an answer without token ids; set token_ids to off")
        return completion

    def take(self, completion: Completion) -> bool:
        """See `Asking`."""
        if completion.token_ids is None:
            raise ModelError("this rollout was begun in text mode; set token_ids to off, or run the stage anew")
        return self._transcript.absorb(completion.text, completion.token_ids, completion.completion_tokens)


class Text:
    """The rendered prompt followed by the turn's text. What fits is an estimate: the server has the last word."""

    def __init__(self, engine: RolloutEngine, messages: Sequence[Mapping[str, str]], transcript: Transcript) -> None:
        self._engine = engine
        self._transcript = transcript
        self._prompt = engine.render(messages)
        self._server_tokens = 0
        self._server_chars = 0
        self.prompt_ids = array("i")

    def room(self) -> tuple[int, str]:
        """See `Asking`."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        window = most if limits.max_model_len is None else limits.max_model_len - self._context_tokens()
        return max(1, min(most, window)), "context_full"

    def _context_tokens(self) -> int:
        """Length of the context by the tokenizer, or from above by what the server counted last."""
        text = self._prompt + self._transcript.text
        if self._engine.renderer is not None:
            return len(self._engine.renderer.encode(text))
        return self._server_tokens + len(text) - self._server_chars

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `Asking`."""
        text = self._prompt + self._transcript.text
        return await _complete(self._engine, text, max_tokens, seed, session, deadline)

    def take(self, completion: Completion) -> bool:
        """See `Asking`."""
        before = len(self._transcript.text)
        said = self._transcript.absorb(completion.text, None, completion.completion_tokens)
        after = len(self._transcript.text)
        self._server_tokens = completion.prompt_tokens + tokens_kept(completion, after - before)
        self._server_chars = len(self._prompt) + after
        return said


class Chat:
    """The turn as a conversation. Tokens are those that the service counted; a character counts as one until then."""

    def __init__(
        self, engine: RolloutEngine, model: ChatModel, messages: Sequence[Mapping[str, str]], transcript: Transcript
    ) -> None:
        self._engine = engine
        self._model = model
        self._opening = messages
        self._transcript = transcript
        self._first_prompt_tokens: int | None = None
        self._counted_tokens = 0
        self._counted_chars = 0
        self.prompt_ids = array("i")

    def room(self) -> tuple[int, str]:
        """See `Asking`. Results count towards the budget once the service has counted them, with the next prompt."""
        limits, most = self._engine.limits, self._engine.sampling.max_tokens
        window = most
        if limits.max_model_len is not None:
            window = max(1, limits.max_model_len - self._counted_tokens - (self._num_chars() - self._counted_chars))
        budget = most
        if limits.max_trajectory_tokens is not None:
            budget = limits.max_trajectory_tokens - (self._counted_tokens - (self._first_prompt_tokens or 0))
        return min(most, window, budget), "context_full" if window <= budget else "budget"

    async def ask(self, max_tokens: int, seed: int, *, session: str, deadline: float) -> Completion:
        """See `Asking`."""
        sampling = self._engine.sampling
        return await self._model.chat(
            conversation(self._opening, self._transcript.segments()),
            sampling if max_tokens == sampling.max_tokens else sampling.model_copy(update={"max_tokens": max_tokens}),
            seed=seed,
            session=session,
            deadline=deadline,
            stop=self._engine.protocol.stops,
        )

    def take(self, completion: Completion) -> bool:
        """See `Asking`."""
        if self._first_prompt_tokens is None:
            self._first_prompt_tokens = completion.prompt_tokens
        before = self._num_chars()
        marker = dropped_stop(self._transcript.open_text, completion, self._engine.protocol)
        said = self._transcript.absorb(completion.text + marker, None, completion.completion_tokens)
        kept = min(self._num_chars() - before, len(completion.text))
        # Thoughts that the service keeps to itself are paid for, but do not come back with the next request.
        self._counted_tokens = completion.prompt_tokens + min(tokens_kept(completion, kept), kept)
        self._counted_chars = before + kept
        return said

    def _num_chars(self) -> int:
        return sum(len(message["content"]) for message in self._opening) + len(self._transcript.text)


def conversation(opening: Sequence[Mapping[str, str]], segments: Iterable[Segment]) -> list[dict[str, str]]:
    """The assistant's turn as messages after those of the opening, which end with one of the user.

    What the system wrote (`Transcript.segments` knows, not the text) is the user's, all else the assistant's.
    """
    turns: list[dict[str, str]] = []
    for segment in segments:
        role = "user" if segment.kind == RESULT else "assistant"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += segment.text
        else:
            turns.append({"role": role, "content": segment.text})
    if turns and turns[-1]["role"] == "assistant":
        turns.append({"role": "user", "content": GO_ON})
    return [*({"role": message["role"], "content": message["content"]} for message in opening), *turns]


def dropped_stop(before: str, completion: Completion, tags: Tags) -> str:
    """The closing marker at which generation stopped, where the service has left it out of the text; else nothing.

    It is the one that the service names, or that of the block in which the text ends. `before` is what the model said
    since the last result.
    """
    text = before + completion.text
    if completion.finish_reason != "stop" or tags.closing_stops.search(text):
        return ""
    if completion.stop_reason in tags.stops:
        return str(completion.stop_reason)
    pieces = tokenise(text, tags, model_text=True)
    tag = tags.by_name.get(pieces[-1].kind) if pieces else None
    return tag.closing if tag is not None and tag.stop else ""


def tokens_kept(completion: Completion, num_chars: int) -> int:
    """Tokens of the first characters of an answer, the rest of which was cut off: their share, rounded up."""
    whole = len(completion.text)
    if num_chars >= whole:
        return completion.completion_tokens
    return -(-completion.completion_tokens * num_chars // whole)


async def _complete(
    engine: RolloutEngine, prompt: list[int] | str, max_tokens: int, seed: int, session: str, deadline: float
) -> Completion:
    request = CompletionRequest(
        prompt=prompt, max_tokens=max_tokens, sampling=engine.sampling, stop=engine.protocol.stops, seed=seed
    )
    answer = engine.model.complete(request, session=session, deadline=deadline)
    del request, prompt  # thousands wait at once: while the server thinks, nobody needs the ids
    return await answer
