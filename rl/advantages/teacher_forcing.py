"""Score token ids by teacher forcing: the servers of critic and reference return the log-probability of each id.

Both models score the same ids, so equal models give equal sums after equal contexts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import orjson

from treadle.agent.call_cache import CallCache
from treadle.agent.model_sessions import ModelSession, ModelSessions
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError, ContextTooLong, TreadleError
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.types import CompletionRequest

ScoringRole = Literal["critic", "reference"]

_ONE_TOKEN = Sampling(temperature=0.0, top_p=1.0, max_tokens=1)


class WindowTooSmall(TreadleError):
    """Error for a context window that has no room for the ids to score; `reason` names the role, for counts."""

    def __init__(self, role: ScoringRole, model: str, turn: str, why: str) -> None:
        super().__init__(f"models.{model}: the {role} cannot score turn {turn}: {why}; raise max_model_len")
        self.reason = f"{role}_window"


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Token ids to score, after a context.

    Attributes:
        context: Token ids before `ids`.
        ids: Token ids to score.
        mask: 1 for each of `ids` that counts, else 0.
        turn: Name of the turn, for messages, and for the choice of a server that has the context in its cache.
        unit: Name under which the score is cached.
    """

    context: Sequence[int]
    ids: Sequence[int]
    mask: Sequence[int]
    turn: str
    unit: str


@dataclass(frozen=True, slots=True)
class TeacherForcing:
    """Critic and reference, whose servers return the log-probabilities of prompts."""

    sessions: Mapping[ScoringRole, ModelSession]

    @classmethod
    async def open(
        cls,
        sessions: ModelSessions,
        *,
        critic: tuple[str, ModelSettings],
        reference: tuple[str, ModelSettings],
        tokenizer_digest: str,
    ) -> Self:
        """Open both models, each given by name and settings.

        Raises ConfigError for a server that takes no token ids, and as `ModelSessions.model` does.
        """
        opened: dict[ScoringRole, ModelSession] = {}
        asked: tuple[tuple[ScoringRole, tuple[str, ModelSettings]], ...]
        asked = (("reference", reference), ("critic", critic))
        for role, (name, model) in asked:
            opened[role] = await sessions.model(name, model, tokenizer_digest)
            if opened[role].codec is None:
                raise ConfigError(
                    f"models.{name}: the {role} scores token ids, which its server does not take; serve it with vLLM, "
                    "and set its tokenizer"
                )
        return cls(opened)

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Tokenizer of both models."""
        tokenizer = self.sessions["reference"].tokenizer
        assert isinstance(tokenizer, ChatTokenizer)
        return tokenizer

    def check(self, role: ScoringRole, span: ScoredSpan) -> None:
        """Raise WindowTooSmall if a server's window is known and too small for the context, the ids and one more id."""
        session, needed = self.sessions[role], len(span.context) + len(span.ids) + 1
        window = session.facts.max_model_len
        if window is not None and needed > window:
            raise WindowTooSmall(
                role, session.name, span.turn, f"{needed:,} tokens are needed, and its server has {window:,}"
            )

    async def score(
        self, role: ScoringRole, span: ScoredSpan, *, cache: CallCache, deadline: float
    ) -> tuple[float, int]:
        """Return the summed log-probability in nats of the ids that count, and the number of tokens of the request.

        Raises WindowTooSmall if the window of the server is too small, and ModelError.
        """
        if (known := cache.get(span.unit)) is not None:
            total, used = orjson.loads(known)
            return total, used
        session, prompt = self.sessions[role], [*span.context, *span.ids]
        self.check(role, span)
        request = CompletionRequest(prompt, 1, _ONE_TOKEN, (), 0, scores_prompt=True)
        try:
            done = await session.meter.complete(request, session=f"{role} {span.turn}", deadline=deadline)
        except ContextTooLong as error:
            raise WindowTooSmall(role, session.name, span.turn, str(error)) from error
        assert done.prompt_logprobs is not None
        own = done.prompt_logprobs[len(span.context) - 1 :]
        total = sum(logprob for logprob, kept in zip(own, span.mask, strict=True) if kept)
        used = done.prompt_tokens + done.completion_tokens
        cache.append(span.unit, orjson.dumps([total, used]))
        return total, used
