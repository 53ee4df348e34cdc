"""Define the context of an operator: the question, the parent trajectory, models to ask, and rollouts to continue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from treadle.agent.call_cache import CallCache, ScopedCache
from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.edit import empty_prefix, extended
from treadle.agent.prefix import Prefix
from treadle.agent.role import Reply, RoleModel
from treadle.agent.token_ids import Codec
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import ContextTooLong
from treadle.core.seeds import derive_seed
from treadle.datagen.operators.parent import Finding, Parent
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.pools.role_usage import RoleUsage, TrackedCache, count_rollout
from treadle.datagen.pools.steps import Step
from treadle.datagen.prompts import PromptSet

T = TypeVar("T")


RunRollout = Callable[[Prefix | None, int, CallCache], Awaitable[Trajectory]]
"""Function that runs a rollout from a prefix (None: from the start) with a seed and a cache."""


@dataclass(slots=True, kw_only=True)
class OperatorContext:
    """Context of one operator applied to one trajectory.

    Attributes:
        question: The question, without its gold answers.
        parent: The trajectory to work on.
        prompts: The prompts in use.
        roles: Model of each role (`critic`, `refiner`).
        hints: Hints for this kind of question.
        codec: The policy's tokenizer; None in text mode.
        tags: Tags of the environment; None if it has native calls. Operators see such calls as tags: they use
            `dialect`, which is set in both cases.
        seed: Seed of this application, in [0, 2**31).
        run_rollout: Function that runs a rollout; use `continue_from` and `roll_out`.
        cache: Stored answers of models and tools of this application.
        deadline: Deadline of model requests, a time of the work clock (`treadle.core.work_clock`).
        used_prompts: Digest of each prompt used so far, by name.
        usage: Usage so far, by role.
        num_requests: Number of model requests so far.
        num_rollouts: Number of rollouts so far.
    """

    question: Task
    parent: Parent
    prompts: PromptSet
    roles: Mapping[str, RoleModel]
    hints: Sequence[str]
    codec: Codec | None
    tags: TagDialect | None
    seed: int
    run_rollout: RunRollout
    cache: CallCache
    deadline: float
    new_finding_context: Callable[[str], OperatorContext]
    used_prompts: dict[str, str] = field(default_factory=dict)
    usage: dict[str, RoleUsage] = field(default_factory=dict)
    num_requests: int = 0
    num_rollouts: int = 0

    @property
    def dialect(self) -> TagDialect:
        """Tag dialect of `trajectory`: the environment's, or that of the view of native calls."""
        if self.tags is not None:
            return self.tags
        if (view := self.parent.usable_view) is None:
            raise ValueError("a parent with native calls needs a view")
        return view.dialect

    @property
    def trajectory(self) -> Trajectory:
        """The parent's trajectory; native calls are shown as tags."""
        view = self.parent.usable_view
        return self.parent.entry.trajectory if view is None else view.trajectory

    @property
    def steps(self) -> Sequence[Step]:
        """The parent's steps."""
        return self.parent.steps

    async def ask(
        self, role: str, prompt: str, values: Mapping[str, object], *, prefill: str = "", stop: Sequence[str] = ()
    ) -> Reply:
        """Render a prompt, ask the model of a role, and store the reply.

        `values` are inserted as data: see `PromptSet.messages`. Raises EditRejected (`prompt_too_long`) if the prompt
        exceeds the context window.
        """
        messages = self.prompts.messages(prompt, values)
        self.used_prompts[prompt] = self.prompts.digest(prompt)
        return await self.ask_messages(role, messages, prefill=prefill, stop=stop)

    async def ask_messages(
        self, role: str, messages: Sequence[Mapping[str, str]], *, prefill: str = "", stop: Sequence[str] = ()
    ) -> Reply:
        """Ask the model of a role with an operator's own messages, and store the reply.

        The reply continues `prefill`. A chat service gets the prefill in the last message and may not continue it.
        Insert other texts into the messages with `as_data`. Raises EditRejected (`prompt_too_long`) like `ask`.
        """
        number, self.num_requests = self.num_requests, self.num_requests + 1
        try:
            reply = await self.roles[role].ask(
                messages,
                cache=self.cache,
                unit=f"ask-{number}",
                seed=derive_seed(self.seed, "ask", number),
                session=self.question.key,
                deadline=self.deadline,
                prefill=prefill,
                stop=stop,
            )
        except ContextTooLong:
            raise EditRejected("prompt_too_long") from None
        self.usage.setdefault(role, RoleUsage()).add(reply.prompt_tokens, reply.completion_tokens)
        return reply

    async def once(self, name: str, find: Callable[[OperatorContext], Awaitable[T]]) -> T:
        """Return the result of `find` for the parent, computed once for all operators of the expansion.

        `find` gets a separate context; its usage is counted for the expansion. If it raises EditRejected, every
        operator that calls this gets the exception.
        """
        finding = self.parent.findings.get(name)
        if finding is None:
            context = self.new_finding_context(name)
            finding = Finding.begin(context.usage, find(context))
            self.parent.findings[name] = finding
        return await asyncio.shield(finding.task)

    def choose(self, what: str, options: Sequence[T]) -> T:
        """Return one of several options, chosen by the seed."""
        return options[derive_seed(self.seed, "choose", what) % len(options)]

    def prefix(self, num_steps: int) -> Prefix:
        """Return the parent's first steps with their exact token ids."""
        end = self.steps[num_steps - 1].end_segment if num_steps else 0
        return self.trajectory.prefix(end, self.codec, self.dialect) if end else empty_prefix()

    def prefix_of_segments(self, num_segments: int) -> Prefix:
        """Return the parent's first segments with their exact token ids."""
        return self.trajectory.prefix(num_segments, self.codec, self.dialect) if num_segments else empty_prefix()

    def extend(self, prefix: Prefix, text: str) -> Prefix:
        """Return a prefix with model text appended; a call at its end runs before the model continues."""
        return extended(prefix, text, self.codec, self.dialect)

    async def continue_from(self, prefix: Prefix) -> Trajectory:
        """Continue a rollout of the policy from a prefix.

        Calls in the prefix do not run again but count towards the limits, which grow by
        `environment.continuation_calls`. The returned trajectory includes the prefix.
        """
        view = self.parent.usable_view
        return await self._run_and_count(prefix if view is None else view.native_prefix(prefix))

    def rewritten(self, edited: Trajectory) -> Trajectory:
        """Return an edited `trajectory` in the form of its environment; a view of native calls is converted back.

        In that case, raises EditRejected (`actions_changed`) if calls, results or the answer are different.
        """
        view = self.parent.usable_view
        return edited if view is None else view.native_trajectory(edited)

    async def roll_out(self) -> Trajectory:
        """Return a new rollout of the policy."""
        return await self._run_and_count(None)

    async def _run_and_count(self, prefix: Prefix | None) -> Trajectory:
        number, self.num_rollouts = self.num_rollouts, self.num_rollouts + 1
        # An operator may run several rollouts; each has a separate seed and cache.
        seed = derive_seed(self.seed, "run_rollout", number) if number else self.seed
        cache = ScopedCache(self.cache, f"run_rollout-{number}") if number else self.cache
        tracked = TrackedCache(cache)
        try:
            trajectory = await self.run_rollout(prefix, seed, tracked)
        except BaseException:
            tracked.count(self.usage)
            raise
        count_rollout(self.usage, trajectory, len(prefix.calls) if prefix else 0)
        return trajectory
