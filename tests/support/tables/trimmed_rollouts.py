"""Rollouts of web agents with a small window: scripted turns, a search of any length, and what the model saw."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.trajectory import Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.environments.opening import limits_of
from treadle.environments.planning.runtime import PlanningRuntime
from treadle.environments.planning.settings import PlanningSettings

QUESTION = Task("q", "Who?")
ANSWER = "<think>done</think><answer>X</answer>"
CHECKED = "<think>sure</think><suggested_answer>X</suggested_answer><think>it is</think><double_check>4</double_check>"
PLAN = "<think>first</think><plan>look for both, compare</plan>"
REFLECTION = "<think>so far</think><reflection>information conflict: good</reflection>"


class Search:
    """Search that finds a text of as many words as the query says."""

    name = "web_search"

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __aenter__(self) -> Search:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        self.asked.append(argument)
        number, _, words = argument.partition(" of ")
        return ToolOutcome("ok", " ".join([f"fact{number}"] * int(words or 3)), 0.0)


class Model:
    """Model that says the given texts, one per request, over any route, and notes what it saw."""

    def __init__(self, texts: Sequence[str], tokenizer: ChatTokenizer | None = None) -> None:
        self.texts = list(texts)
        self.tokenizer = tokenizer
        self.saw: list[Any] = []
        self.sampled: list[tuple[int, ...]] = []
        self.asked: list[int] = []

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        self.asked.append(request.max_tokens)
        return self.reply(request.prompt, len(request.prompt))

    async def chat(self, messages: Sequence[Mapping[str, str]], sampling: Sampling, **_: Any) -> Completion:
        self.asked.append(sampling.max_tokens)
        return self.reply(list(messages), sum(len(message["content"]) for message in messages) // 4)

    def reply(self, prompt: Any, num_tokens: int) -> Completion:
        text = self.texts.pop(0)
        ids = tuple(self.tokenizer.encode(text)) if self.tokenizer else None
        self.saw.append(prompt)
        self.sampled.append(ids or ())
        return Completion(text, ids, "stop", None, num_tokens, len(ids or text), "http://x/v1", 0.0, 0)


def web_settings(reserve: int | None, **keys: Any) -> PlanningSettings:
    return PlanningSettings(**{"dialect": "web", "instructions": "", "trim_reserve_tokens": reserve, **keys})


def played(
    model: Model,
    window: int,
    *,
    search: Search | None = None,
    cache: CallCache | None = None,
    over_chat: bool = False,
    hint: str = "",
    reserve: int = 100,
    task: Task = QUESTION,
    **keys: Any,
) -> Trajectory:
    """Return a rollout of the model in a window of so many tokens."""
    settings = web_settings(reserve, **keys)
    engine = RolloutEngine(
        model,
        model.tokenizer,
        Sampling(max_tokens=reserve),
        limits_of(settings, max_model_len=window),
        settings.turn_dialect,
        chat=model if over_chat else None,
    )
    episode = PlanningRuntime(settings, {"web_search": search or Search()}).episode()
    return asyncio.run(
        engine.roll_out(
            episode,
            task,
            seed=1,
            deadline=math.inf,
            cache=NullCache() if cache is None else cache,
            options=EpisodeOptions(hint=hint),
        )
    )


def asking(number: int, words: int = 40) -> str:
    return f"<think>now {number}</think><web_search>{number} of {words}</web_search>"


def mixed(count: int, words: int = 40) -> list[str]:
    """Return turns that the guard against circles lets run: a reflection before each second one."""
    return [PLAN + asking(0, words)] + [
        (REFLECTION if number % 2 else "") + asking(number, words) for number in range(1, count)
    ]
