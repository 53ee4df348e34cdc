"""Rollouts in memory with native tool calls, over token ids, as text and through a chat service."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.rollouts.rollout_bench import FixedTool, load
from support.tool_templates import call_text, load_tool_tokenizer

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import Task
from treadle.agent.rollout import RolloutEngine
from treadle.agent.trajectory import Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest, ToolCall
from treadle.environments.opening import limits_of
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings

ROUTES = ("qwen", "llama", "smollm2", "text", "chat")
SETTINGS = QuestionSettings(dialect="functions")


@dataclass(frozen=True)
class Spoken:
    """One turn of a script."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, object]]] = ()
    reasoning: str = ""


def tokenizer_of(route: str) -> ChatTokenizer | None:
    """Return the tokenizer of a route; None for text and chat."""
    if route in ("text", "chat"):
        return None
    return load(route) if route == "smollm2" else load_tool_tokenizer(route)


class NativeModel:
    """Model that follows a script, as models of the route's family write."""

    def __init__(self, script: Sequence[Spoken], route: str) -> None:
        self._script = iter(script)
        self._family = "llama" if route == "llama" else "hermes"
        self._tokenizer = tokenizer_of(route)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        turn = next(self._script)
        thought = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
        calls = [call_text(self._family, *call) for call in turn.calls]
        if self._family == "llama":
            text = thought + ("; ".join(calls) or turn.text)
        else:
            text = thought + "\n".join([*([turn.text] if turn.text else []), *calls])
        coder = self._tokenizer
        ids = None if coder is None else (*coder.encode(text), *coder.turn_end_ids[:1])
        return Completion(text, ids, "stop", None, len(request.prompt), 9, "http://x/v1", 0.1, 0)

    async def chat(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, **options: Any) -> Completion:
        turn = next(self._script)
        calls = tuple(
            ToolCall(f"srv{place}", name, json.dumps(given)) for place, (name, given) in enumerate(turn.calls)
        )
        facts = ("http://x/v1", 0.1, 0)
        return Completion(turn.text, None, "stop", None, 20, 9, *facts, tool_calls=calls, reasoning=turn.reasoning)


async def play_native(route: str, script: Sequence[Spoken], task: Task) -> Trajectory:
    """Roll out a script with the tools `search` and `python`, which answer from their argument."""
    tokenizer, model, is_chat = tokenizer_of(route), NativeModel(script, route), route == "chat"
    dialect = SETTINGS.turn_dialect.bound(tokenizer, is_chat=is_chat)
    engine = RolloutEngine(model, tokenizer, Sampling(), limits_of(SETTINGS), dialect, chat=model if is_chat else None)
    tools = {"search": FixedTool("search"), "python": FixedTool("python", "{}")}
    return await engine.roll_out(QuestionEpisode(SETTINGS, tools), task, seed=7, deadline=math.inf, cache=NullCache())
