"""Rollouts in memory: a scripted model, tools that answer from their argument, real tokenizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from support.qwen_tokenizer import qwen_tokenizer

from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.dialects.base import render
from treadle.agent.model_types import RolloutLimits
from treadle.agent.prefix import Prefix
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome
from treadle.agent.trajectory import Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings

QUESTION = Task("k", "Where was the inventor of the <|im_end|> token born?")
SEARCH = "<think>look</think><search>q</search>"
ANSWER = "<think>done</think><answer>\\boxed{1}</answer>"


@cache
def load(name: str) -> ChatTokenizer:
    """`qwen` or `smollm2`."""
    return ChatTokenizer.load(qwen_tokenizer() if name == "qwen" else embedded_tokenizer())


class FixedTool:
    """Answers from the argument alone."""

    def __init__(self, name: str, text: str = "found: {}") -> None:
        self.name = name
        self.calls = 0
        self._text = text

    async def __aenter__(self) -> FixedTool:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        self.calls += 1
        return ToolOutcome("ok" if argument else "invalid", self._text.format(argument))


Reply = str | tuple[str, str] | Exception
"""Text; or text and how it ended; or what is raised."""


class ScriptedModel:
    """Replies in the order of a list, or as a function of the prompt; ids run on after a stop by `overrun`."""

    def __init__(
        self,
        replies: Sequence[Reply] | Callable[[CompletionRequest], Reply],
        tokenizer: ChatTokenizer | None,
        overrun: str = "",
    ) -> None:
        self.requests: list[CompletionRequest] = []
        self._replies = replies
        self._tokenizer = tokenizer
        self._overrun = overrun

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        self.requests.append(request)
        reply = self._replies(request) if callable(self._replies) else self._replies[len(self.requests) - 1]
        if isinstance(reply, Exception):
            raise reply
        text, finish = (reply, "stop") if isinstance(reply, str) else reply
        ids: tuple[int, ...] | None = None
        if self._tokenizer is not None:
            sampled = self._tokenizer.encode(text + self._overrun)
            ids = tuple(sampled if finish == "length" else [*sampled, *list(self._tokenizer.eos_ids)[:1]])
        return Completion(text, ids, finish, None, len(request.prompt), len(ids or text), "http://x/v1", 0.5, 0)


async def play(
    model: ScriptedModel,
    tokenizer: ChatTokenizer | None,
    *,
    environment: QuestionSettings | None = None,
    prefix: Prefix | None = None,
    additional: int = 0,
    cache: CallCache | None = None,
    max_model_len: int | None = None,
    max_tokens: int = 4096,
    tool: FixedTool | None = None,
    deadline: float = math.inf,
) -> Trajectory:
    """One rollout of `QUESTION`."""
    settings = environment or QuestionSettings()
    tools: dict[str, Tool] = {"search": tool or FixedTool("search"), "python": FixedTool("python")}
    limits = RolloutLimits(settings.turn_limit(additional), max_model_len, settings.max_trajectory_tokens)
    engine = RolloutEngine(model, tokenizer, Sampling(max_tokens=max_tokens), limits, settings.turn_dialect)
    return await engine.roll_out(
        QuestionEpisode(settings, tools),
        QUESTION,
        seed=7,
        deadline=deadline,
        cache=cache or NullCache(),
        prefix=prefix,
        options=EpisodeOptions(additional_calls=additional),
    )


def settings(**keys: object) -> QuestionSettings:
    """Return settings of the environment."""
    return load_config(QuestionSettings, data=keys)


def check_invariants(trajectory: Trajectory, tokenizer: ChatTokenizer) -> None:
    """Ids, origins, segments and text tell the same story."""
    assert len(trajectory.samples[0].ids) == len(trajectory.samples[0].origins)
    assert tokenizer.decode(trajectory.samples[0].ids) == trajectory.text == render(trajectory.segments)
    position = 0
    for segment in trajectory.segments:
        assert segment.start == position <= segment.end
        position = segment.end
        origins = set(trajectory.samples[0].origins[segment.start : segment.end])
        assert origins <= {"result": {0}, "frame": {1}}.get(segment.kind, {1, 2})
    assert position == len(trajectory.samples[0].ids)
