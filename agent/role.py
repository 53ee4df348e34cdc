"""A model in a role beside the policy: judge, critic, refiner. It is asked one thing at a time and remembers nothing.

Prompts go out as token ids where the server takes them, so that nothing in them can become a control token. An answer
may be begun for the model (`prefill`): it then goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from treadle.agent.memory import Memory
from treadle.agent.rollout import ChatCodec, ChatModel, Model, render_chatml
from treadle.core.errors import ConfigError, ContextTooLong
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest


class AskedModel(Model, ChatModel, Protocol):
    """What is needed of a model; `treadle.agent.metering.Meter` fits."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said in a role. `text` is without the prefill; `cut`: it was longer than the role's bound."""

    text: str
    cut: bool
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class RoleModel:
    """A model with the sampling of its role.

    Attributes:
        role: Such as `judge`.
        name: The model's name in the configuration.
        model: What answers.
        sampling: How.
        codec: The tokenizer, where the server takes ids.
        renderer: The tokenizer where it does not; without either, the server renders, and a prefill goes as ChatML.
        max_model_len: The window in tokens; None if unknown.
        chat_only: Whether its server knows no route but chat; then nothing can be begun for it.
    """

    role: str
    name: str
    model: AskedModel
    sampling: Sampling
    codec: ChatCodec | None = None
    renderer: ChatCodec | None = None
    max_model_len: int | None = None
    chat_only: bool = False

    async def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        memory: Memory,
        unit: str,
        seed: int,
        session: str,
        deadline: float,
        prefill: str = "",
        stop: Sequence[str] = (),
    ) -> Reply:
        """One answer, remembered under `unit` before it is looked at; a remembered one is not asked again.

        Stop strings are kept in the text, but not by chat-only services. Raises ContextTooLong where the prompt leaves
        no room, DeadlineExceeded, other ModelErrors where the model cannot be asked, and ConfigError for a prefill that
        its server cannot go on from.
        """
        known = memory.get(unit)
        if known is not None:
            completion = Completion.from_json(known)
        else:
            completion = await self._complete(messages, prefill, tuple(stop), seed, session, deadline)
            memory.append(unit, completion.to_json())
        return _reply(completion)

    async def _complete(
        self,
        messages: Sequence[Mapping[str, str]],
        prefill: str,
        stop: tuple[str, ...],
        seed: int,
        session: str,
        deadline: float,
    ) -> Completion:
        if self.chat_only:
            if prefill:
                raise ConfigError(f'models.{self.name}: the {self.role} goes on from text, which api = "chat" cannot')
            return await self.model.chat(
                messages, self.sampling, seed=seed, session=session, deadline=deadline, stop=stop
            )
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


def remembered_reply(value: bytes) -> Reply:
    """A reply as `RoleModel.ask` remembers it."""
    return _reply(Completion.from_json(value))


def _reply(completion: Completion) -> Reply:
    return Reply(
        completion.text,
        completion.finish_reason == "length",
        completion.prompt_tokens,
        completion.completion_tokens,
    )
