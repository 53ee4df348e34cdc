"""Define the shared resources of the stage `pools`, and a null model for replay."""

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
from treadle.datagen.pools.settings import PoolOptions
from treadle.datagen.prompts import PromptSet


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """Resources that all questions of a stage share.

    Attributes:
        fresh: Engine for rollouts from the start.
        continuing: Engine for rollouts that continue from an edit.
        roles: Models of critic and refiner.
        final: Whether nothing is left pending: an infrastructure error then counts as the operator's failure.
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

    def for_replay(self, cause: str) -> PoolContext:
        """Return a context that replays stored answers; requests to others than the judge fail with this cause."""
        null_model = NullModel(cause)
        return replace(
            self,
            fresh=replace(self.fresh, model=null_model),
            continuing=replace(self.continuing, model=null_model),
            tools=dict.fromkeys(self.tools, null_model),
            roles={name: replace(role, model=null_model) for name, role in self.roles.items()},
            final=True,
        )

    def hints(self, domain: str) -> Sequence[str]:
        """Return the hints for questions of a domain."""
        hints: tuple[str, ...] = getattr(self.options.hints, domain)
        return hints


@dataclass(slots=True)
class NullModel:
    """Null model and null tool; every request raises EndpointUnavailable."""

    cause: str
    name: str = ""

    async def __aenter__(self) -> NullModel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Raise EndpointUnavailable; see `RoleModel`."""
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
        """Raise EndpointUnavailable; see `RoleModel`."""
        raise EndpointUnavailable(self.cause)

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Raise EndpointUnavailable; see `Tool`."""
        raise EndpointUnavailable(self.cause)
