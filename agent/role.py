"""Ask a model in a role other than the policy: judge, critic, refiner. Each request is independent of the others.

Prompts are sent as token ids if the server takes them, so that no text in a prompt can become a control token. The
start of an answer can be given (`prefill`); the model then continues it. A chat service gets that start in the last
message instead, and parts of it that the reply repeats are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from treadle.agent.call_cache import CallCache
from treadle.agent.continuation import joined_reply, with_beginning
from treadle.agent.model_types import ChatCodec, ChatModel, CompletionModel, render_chatml
from treadle.core.errors import ContextTooLong
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.llm.wire import num_images


class RoleBackend(CompletionModel, ChatModel, Protocol):
    """Interface of the model; `treadle.agent.metering.Meter` implements it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of a model in a role, without the prefill; `is_truncated` is set if `max_tokens` cut it short."""

    text: str
    is_truncated: bool
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class RoleModel:
    """Model with the sampling parameters of its role.

    Attributes:
        role: For example `judge`.
        name: Name of the model in the configuration.
        model: Completes the requests.
        sampling: Sampling parameters.
        codec: Tokenizer, if the server takes token ids.
        renderer: Tokenizer that renders the prompt as text, if the server takes no ids. Without codec and renderer the
            server renders messages; with a prefill or stop strings the prompt is sent as ChatML.
        max_model_len: Context window in tokens; None if unknown.
        continues_text: Whether the server continues a prefill; a chat service reads it in the last message.
    """

    role: str
    name: str
    model: RoleBackend
    sampling: Sampling
    codec: ChatCodec | None = None
    renderer: ChatCodec | None = None
    max_model_len: int | None = None
    continues_text: bool = True

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        cache: CallCache,
        unit: str,
        seed: int,
        session: str,
        deadline: float,
        prefill: str = "",
        stop: Sequence[str] = (),
    ) -> Reply:
        """Return the cached answer of `unit`, or request one; a new answer is cached before it is used.

        Stop strings are kept in the text, or put back if the server leaves them out. Messages with pictures (see
        `treadle.core.llm.wire.image_message`) are rendered by the server. Raises ContextTooLong if the
        prompt leaves no room, DeadlineExceeded, and other ModelErrors if the request fails.
        """
        known = cache.get(unit)
        if known is not None:
            completion = Completion.from_json(known)
        else:
            completion = await self._complete(messages, prefill, tuple(stop), seed, session, deadline)
            if prefill and not self.continues_text:
                completion = replace(completion, text=joined_reply(prefill, completion.text))
            if marker := dropped_stop_string(prefill, completion, stop):
                completion = replace(completion, text=completion.text + marker, stop_dropped=False)
            cache.append(unit, completion.to_json())
        return _reply(completion)

    async def ask_first_fitting(
        self,
        forms: Iterable[Sequence[Mapping[str, Any]]],
        *,
        cache: CallCache,
        unit: str,
        seed: int,
        session: str,
        deadline: float,
    ) -> Reply:
        """Return the answer to the first of several forms of a prompt that fits into the window; see `ask`.

        Raises ContextTooLong if none does.
        """
        failure = ContextTooLong("there is nothing to ask")
        for messages in forms:
            try:
                return await self.ask(messages, cache=cache, unit=unit, seed=seed, session=session, deadline=deadline)
            except ContextTooLong as error:
                failure = error
        raise failure

    async def _complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        prefill: str,
        stop: tuple[str, ...],
        seed: int,
        session: str,
        deadline: float,
    ) -> Completion:
        if not self.continues_text:
            if prefill:
                messages = with_beginning(messages, prefill)
            return await self.model.chat(
                messages, self.sampling, seed=seed, session=session, deadline=deadline, stop=stop
            )
        if num_images(messages):
            if prefill:
                raise ValueError("the answer to messages with pictures cannot be begun")
            return await self.model.chat(
                messages, self.sampling, seed=seed, session=session, deadline=deadline, stop=stop
            )
        # Without a tokenizer the server renders the messages, but a prefill or stop strings need a raw prompt.
        if self.codec is None and self.renderer is None and not prefill and not stop:
            return await self.model.chat(messages, self.sampling, seed=seed, session=session, deadline=deadline)
        prompt: list[int] | str
        max_tokens = self.sampling.max_tokens
        if self.codec is not None:
            prompt = self.codec.prompt_ids(messages) + (self.codec.encode(prefill) if prefill else [])
            if self.max_model_len is not None:
                max_tokens = min(max_tokens, self.max_model_len - len(prompt))
                if max_tokens < 1:
                    raise ContextTooLong(f"models.{self.name}: the {self.role}'s prompt fills its window")
        else:
            render = self.renderer.render if self.renderer is not None else render_chatml
            prompt = render(messages) + prefill
        request = CompletionRequest(prompt=prompt, max_tokens=max_tokens, sampling=self.sampling, stop=stop, seed=seed)
        return await self.model.complete(request, session=session, deadline=deadline)


def dropped_stop_string(before: str, completion: Completion, stops: Sequence[str]) -> str:
    """Return the stop string that ended an answer if the server left it out of the text; else an empty string.

    This is the stop string that the server names, else the only one in `stops`, else the closing tag among them whose
    opening tag occurs last in `before` plus the answer.
    """
    if not completion.stop_dropped:
        return ""
    if completion.stop_reason in stops:
        return str(completion.stop_reason)
    if len(stops) == 1:
        return stops[0]
    text = before + completion.text
    openings = {stop: text.rfind(stop.replace("</", "<", 1)) for stop in stops if stop.startswith("</")}
    last = max(openings, key=lambda stop: openings[stop], default="")
    return last if last and openings[last] >= 0 else ""


def parse_cached_reply(value: bytes) -> Reply:
    """Read a reply as cached by `RoleModel.ask`."""
    return _reply(Completion.from_json(value))


def _reply(completion: Completion) -> Reply:
    return Reply(
        completion.text,
        completion.finish_reason == "length",
        completion.prompt_tokens,
        completion.completion_tokens,
    )
