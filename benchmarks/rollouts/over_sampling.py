"""Measure how long a step of groups takes if one of its servers is ten times slower, with and without over-sampling.

    python -m benchmarks.rollouts.over_sampling [--delay 0.5] [--groups 16] [--servers 4]

Each server is a process that answers after `--delay` seconds, the slow one after ten times as long. A group trains on 4
rollouts of three turns; with over-sampling it starts 8. Every second rollout is rewarded, so rewards differ. Times are
relative to the step without a slow server in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.parts import stub_server
from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.rollouts.harness import stub
from treadle.agent.contract import Task
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.runtime import QuestionRuntime
from treadle.environments.question.settings import QuestionSettings
from treadle.rl.environment import OpenEnvironment
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.group import Group, GroupJob, OverSampler
from treadle.rl.groups.oversampling import OverSampling
from treadle.rl.groups.rollout import roll_out_groups

SIZE, SLOWER = 4, 10


class Canned:
    """Tool that answers at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __aenter__(self) -> Canned:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Return the result of the stub server's dialogue."""
        return ToolOutcome("ok", stub_server.RESULT_TEXT)


class Served:
    """Model that asks a pool; requests have no server of their own, so that each goes to the least busy one."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return one completion."""
        until = asyncio.get_running_loop().time() + 600.0
        return await self._pool.complete(request, session=str(request.seed), deadline=until)


async def every_second(group: Group) -> float:
    """Return 1 for rollouts with even numbers, else 0."""
    return 1.0 - group.trajectories[0].session % 2


async def step_s(urls: Sequence[str], codec: ChatTokenizer, num_groups: int, *, oversamples: bool) -> float:
    """Return the seconds that a step takes."""
    endpoints = [{"url": url} for url in urls]
    settings = ModelSettings.model_validate(
        {"model": stub_server.MODEL, "endpoints": endpoints, "max_in_flight": 100_000}
    )
    question = QuestionSettings()
    opened = OpenEnvironment(question, QuestionRuntime(question, {name: Canned(name) for name in ("search", "python")}))
    async with ModelPool("policy", settings) as pool:
        engine = opened.engine(Served(pool), codec, Sampling(max_tokens=1024))
        rollouts = opened.groups(engine, Branching(SIZE), vocab_size=codec.vocab_size)
        if oversamples:
            rollouts = replace(rollouts, over_sampler=OverSampler(OverSampling.of(SIZE, 2.0), every_second))
        jobs = [GroupJob(str(seed), Task(str(seed), f"Number {seed}?"), SIZE, seed) for seed in range(num_groups)]
        began = time.perf_counter()
        groups = await roll_out_groups(rollouts, jobs)
        took = time.perf_counter() - began
    failed = [group.error for group in groups if group.error]
    assert not failed and all(len(group.trajectories) == SIZE for group in groups), failed
    return took


def main() -> None:
    """Parse the options, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=0.5, help="seconds of an answer")
    parser.add_argument("--groups", type=int, default=16, help="groups of the step")
    parser.add_argument("--servers", type=int, default=4, help="servers, the slow one included")
    add_json_option(parser)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        codec = ChatTokenizer.load(write_byte_tokenizer(folder))
        fast = [stack.enter_context(stub(options.delay)) for _ in range(options.servers)]
        mixed = [*fast[1:], stack.enter_context(stub(SLOWER * options.delay))]
        even = asyncio.run(step_s(fast, codec, options.groups, oversamples=False))
        plain = asyncio.run(step_s(mixed, codec, options.groups, oversamples=False))
        over = asyncio.run(step_s(mixed, codec, options.groups, oversamples=True))
    figures = [
        Figure(name="step with equal servers", value=even, unit="s"),
        Figure(name="one server ten times slower: times as long", value=plain / even),
        Figure(name="the same with over-sampling: times as long", value=over / even),
        Figure(name="over-sampling: how many times as fast", value=plain / over, at_least=1.5),
    ]
    publish(figures, options.json)


if __name__ == "__main__":
    main()
