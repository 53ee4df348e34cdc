"""One operator on one trajectory, all in memory: scripted models in every role, stub tools, the real engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from support.qwen_tokenizer import qwen_tokenizer

from treadle.agent.call_cache import CallCache, NullCache, ScopedCache
from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.dialects.tags import require_tags
from treadle.agent.judges.cases import Verdict
from treadle.agent.model_types import RolloutLimits
from treadle.agent.prefix import Prefix
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome
from treadle.agent.trajectory import Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.parent import Parent
from treadle.datagen.pools.pool import PoolEntry
from treadle.datagen.prompts import PromptSet
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings

QUESTION = Task("k", "Which river flows through the birthplace of A?", domain="qa")
HINTS = tuple(f"Wait, {word} thought says: search once more." for word in ("a first", "a second", "a third"))
STEPS = (
    "<think>Who is A? LOOK</think><search>A</search>",
    "<think>Now Y,\nand once more Y</think>\n<python>print('Y')</python>",
    "<think>So it is Z.</think>\n<answer>It is \\boxed{Z}</answer>",
)
"""Turns of a model with two calls."""


@cache
def codec(name: str) -> ChatTokenizer | None:
    """`qwen`, `bytes`, or `text` for none."""
    if name == "text":
        return None
    if name == "qwen":
        return ChatTokenizer.load(qwen_tokenizer())
    folder = qwen_tokenizer().parent / "byte-tokenizer"
    return ChatTokenizer.load(write_byte_tokenizer(folder))


class StubTool:
    """Returns its argument; keeps the arguments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments: list[str] = []

    async def __aenter__(self) -> StubTool:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        self.arguments.append(argument)
        return ToolOutcome("ok", f"{self.name} found: {argument}")


class Script:
    """A model with ordered replies, `(text, finish reason)` if truncated; past them it answers."""

    def __init__(
        self, replies: Sequence[str | tuple[str, str]], tokenizer: ChatTokenizer | None, honours_stops: bool = True
    ) -> None:
        self.requests: list[CompletionRequest] = []
        self.chats: list[Sequence[Mapping[str, str]]] = []
        self._replies = list(replies)
        self._tokenizer = tokenizer
        self._honours_stops = honours_stops

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        self.requests.append(request)
        reply = self._replies.pop(0) if self._replies else "<think>Done.</think><answer>\\boxed{new}</answer>"
        text, finish = (reply, "stop") if isinstance(reply, str) else reply
        if self._honours_stops:
            ends = [text.find(stop) + len(stop) for stop in request.stop if stop in text]
            text = text[: min(ends)] if ends else text
        ids = None
        if self._tokenizer is not None:
            ids = (*self._tokenizer.encode(text), *sorted(self._tokenizer.eos_ids)[: finish == "stop"])
        return Completion(text, ids, finish, None, len(request.prompt), len(ids or text), "http://x/v1", 0.5, 0)

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
    ) -> Completion:
        self.chats.append(messages)
        return await self.complete(CompletionRequest("", 9, sampling, (), seed), session=session, deadline=deadline)

    def prompts(self) -> list[str]:
        """Return its prompts, as text."""
        return [
            request.prompt if isinstance(request.prompt, str) else (self._decode(request.prompt))
            for request in self.requests
        ]

    def _decode(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(ids)


@dataclass
class World:
    """The environment of a test: the models by role, the tools, and the limits of rollouts."""

    name: str = "qwen"
    settings: QuestionSettings = field(default_factory=QuestionSettings)
    honours_stops: bool = True
    window: int | None = None
    tools: dict[str, StubTool] = field(default_factory=lambda: {name: StubTool(name) for name in ("search", "python")})

    def __post_init__(self) -> None:
        self.tokenizer = codec(self.name)
        self.scripts: dict[str, Script] = {}

    async def rolled(self, turns: Sequence[str | tuple[str, str]]) -> Trajectory:
        """Return a trajectory of the policy from its start, with these turns; the tools forget its calls."""
        trajectory = await self._play(Script(turns, self.tokenizer), None, 1, NullCache())
        for tool in self.tools.values():
            tool.arguments.clear()
        return trajectory

    def bench(
        self,
        parent: Trajectory,
        *,
        critic: Sequence[str | tuple[str, str]] = (),
        refiner: Sequence[str | tuple[str, str]] = (),
        policy: Sequence[str | tuple[str, str]] = (),
        seed: int = 7,
        memory: CallCache | None = None,
        hints: Sequence[str] = HINTS,
    ) -> OperatorContext:
        """Return a workbench on a parent, with what the models will say."""
        for role, replies in (("critic", critic), ("refiner", refiner), ("policy", policy)):
            self.scripts[role] = Script(replies, self.tokenizer, self.honours_stops)
        entry = PoolEntry("key", 0, 0, "initial", None, 0, parent, "Z", Verdict(False, 0.0, "qa_f1"), 0.0)
        return self._bench(Parent.of(entry), seed, memory or NullCache(), hints)

    def _bench(self, parent: Parent, seed: int, memory: CallCache, hints: Sequence[str]) -> OperatorContext:
        roles = {
            role: RoleModel(role, "m", self.scripts[role], Sampling(), self.tokenizer, max_model_len=self.window)
            for role in ("critic", "refiner")
        }
        return OperatorContext(
            question=QUESTION,
            parent=parent,
            prompts=PromptSet(),
            roles=roles,
            hints=hints,
            codec=self.tokenizer,
            tags=require_tags(self.settings.turn_dialect, "this bench"),
            seed=seed,
            run_rollout=lambda prefix, seed, memory: self._play(self.scripts["policy"], prefix, seed, memory),
            cache=memory,
            deadline=math.inf,
            new_finding_context=lambda name: self._bench(parent, seed, ScopedCache(memory, name), hints),
        )

    async def _play(self, model: Script, prefix: Prefix | None, seed: int, memory: CallCache) -> Trajectory:
        more = 0 if prefix is None else self.settings.continuation_calls
        limits = RolloutLimits(self.settings.turn_limit(more))
        engine = RolloutEngine(model, self.tokenizer, Sampling(max_tokens=512), limits, self.settings.turn_dialect)
        tools: dict[str, Tool] = dict(self.tools)
        options = EpisodeOptions(additional_calls=more)
        trajectory = await engine.roll_out(
            QuestionEpisode(self.settings, tools),
            QUESTION,
            seed=seed,
            deadline=math.inf,
            cache=memory,
            prefix=prefix,
            options=options,
        )
        return trajectory.without_turn_end()


def environment(**keys: object) -> QuestionSettings:
    """Return settings of the environment."""
    return load_config(QuestionSettings, data=keys)
