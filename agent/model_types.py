"""Interfaces of the models and tokenizers that a rollout uses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treadle.agent.contexts.clipping import SelfClip
from treadle.agent.contexts.thinking import LinearThink
from treadle.agent.dialects.base import Dialect
from treadle.agent.token_ids import Codec
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.transcript import ReplyText
from treadle.agent.trimming import Trimming
from treadle.core.chat_tools import ToolSupport
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest


class CompletionModel(Protocol):
    """Interface of a completion model; `treadle.core.llm.pool.ModelPool` implements it."""

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return one completion. Raises ModelError and its subclasses."""
        ...


class ChatModel(Protocol):
    """Interface of a chat-only service; `treadle.core.llm.pool.ModelPool` implements it."""

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Completion:
        """Return one answer to messages; `tools` are tools as OpenAI's API takes them.

        Raises ModelError and its subclasses.
        """
        ...


class ChatCodec(Codec, Protocol):
    """Codec that also renders chat messages; `treadle.core.chat.ChatTokenizer` implements it."""

    @property
    def tool_support(self) -> ToolSupport:
        """What the chat template does with tools."""
        ...

    added_tokens: frozenset[str]
    """Spellings of the tokens that the tokenizer matches as a whole."""

    def render(self, messages: Sequence[Mapping[str, str]], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the text before the assistant turn; `tools` are tools as OpenAI's API takes them."""
        ...

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the token ids before the assistant turn."""
        ...

    def reply_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text between two assistant turns."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits of one rollout in addition to those of its tools.

    Attributes:
        max_turns: Most generation calls, including those of a continued prefix.
        max_model_len: Context window of the model in tokens; None if unknown.
        max_trajectory_tokens: Longest assistant turn in tokens (ignored in text mode); None for no limit.
        max_prompt_tokens: Longest prompt in tokens; a longer one ends the rollout before its first turn.
        trimming: How a context that gets too long is trimmed; None to end the rollout instead.
        context: How the manager of contexts changes what requests show; None for an append-only context.
        prompt_hint: Text that is added to the last message before the first turn; empty for none.
    """

    max_turns: int
    max_model_len: int | None = None
    max_trajectory_tokens: int | None = None
    max_prompt_tokens: float = math.inf
    trimming: Trimming | None = None
    context: LinearThink | SelfClip | None = None
    prompt_hint: str = ""


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """A model with its tokenizer, sampling and limits, as rollouts use it.

    With `codec` None, requests are text. Then `renderer` renders the prompt if a tokenizer is known although the server
    gives no ids; without one, plain ChatML is used. With `chat`, the service renders the messages and there are no ids.
    With `returns_reasoning`, the service demands its reasoning back, next to the calls that it led to.
    """

    model: CompletionModel
    codec: ChatCodec | None
    sampling: Sampling
    limits: RolloutLimits
    dialect: Dialect
    renderer: ChatCodec | None = None
    chat: ChatModel | None = None
    returns_reasoning: bool = False

    def render(self, messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSchema]) -> str:
        """Return the prompt as text, for text mode."""
        renderer = self.codec or self.renderer
        told, given = self.dialect.tool_prompt(messages, tools)
        return renderer.render(told, tools=given) if renderer else render_chatml(told)

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSchema]) -> list[int]:
        """Return the prompt as token ids; raise ValueError without a codec."""
        if self.codec is None:
            raise ValueError("token ids need a tokenizer, and this model has none")
        if not tools:
            return self.codec.prompt_ids(messages)
        return self.codec.prompt_ids(*self.dialect.tool_prompt(messages, tools))

    @property
    def reply_text(self) -> ReplyText | None:
        """Function that returns the text between two turns; None over the chat route, where the service renders it."""
        if self.chat is not None:
            return None
        renderer = self.codec or self.renderer
        return renderer.reply_text if renderer else chatml_reply


def render_chatml(messages: Sequence[Mapping[str, str]]) -> str:
    """Return messages as plain ChatML with the start of the assistant turn, for models without a known template."""
    turns = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return f"{turns}<|im_start|>assistant\n"


def chatml_reply(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the plain ChatML between two assistant turns."""
    return f"<|im_end|>\n{render_chatml(messages)}"
