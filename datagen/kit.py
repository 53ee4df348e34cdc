"""What the questions of the stage `pools` share: models, tools, judge, operators; and nobody in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from treadle.agent.config import EnvironmentSettings
from treadle.agent.judges.base import Judge
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome
from treadle.core.errors import EndpointUnavailable
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.datagen.operators.base import Operator
from treadle.datagen.pools_settings import PoolOptions
from treadle.datagen.prompts import PromptSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What all questions of a stage share.

    Attributes:
        fresh: Plays rollouts from the start.
        continuing: Plays them on from an edit.
        roles: critic and refiner.
        final: Whether nothing is owed any more: what infrastructure kept from happening is an operator's failure.
    """

    options: PoolOptions
    environment: EnvironmentSettings
    fresh: RolloutEngine
    continuing: RolloutEngine
    tools: Mapping[str, Tool]
    roles: Mapping[str, RoleModel]
    judge: Judge
    operators: Sequence[Operator]
    prompts: PromptSet
    policy_name: str
    seed: int
    final: bool = False

    def without_models(self, cause: str) -> Kit:
        """A kit that asks nobody but its judge: what is not remembered fails for this cause."""
        nobody = Nobody(cause)
        return replace(
            self,
            fresh=replace(self.fresh, model=nobody),
            continuing=replace(self.continuing, model=nobody),
            tools=dict.fromkeys(self.tools, nobody),
            roles={name: replace(role, model=nobody) for name, role in self.roles.items()},
            final=True,
        )

    def hints(self, domain: str) -> Sequence[str]:
        """The hints for questions of a domain."""
        hints: tuple[str, ...] = getattr(self.options.hints, domain)
        return hints


@dataclass(slots=True)
class Nobody:
    """A model and a tool that are not there."""

    cause: str
    name: str = ""

    async def __aenter__(self) -> Nobody:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """See `RoleModel`."""
        raise EndpointUnavailable(self.cause)

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
        """See `RoleModel`."""
        raise EndpointUnavailable(self.cause)

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """See `Tool`."""
        raise EndpointUnavailable(self.cause)
