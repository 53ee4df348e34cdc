"""What stages with an agent open before their first rollout: models, tools, and the engine made of them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from treadle.agent.config import EnvironmentSettings
from treadle.agent.metering import Meter, TokenBudget
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine, RolloutLimits
from treadle.agent.toolbox import make_tools
from treadle.agent.tools.outcome import Tool
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError
from treadle.core.keyed_store import KeyedStore
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.hosted import FIXED_VALUES
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import ServerFacts

_log = logging.getLogger(__name__)


def load_tokenizer(name: str, model: ModelSettings, digest: str) -> ChatTokenizer | None:
    """The tokenizer of a model, None where it has none; raises ConfigError if it is not the one of this digest."""
    folder = model.tokenizer
    if folder is None:
        return None
    tokenizer = ChatTokenizer.load(folder)
    if digest not in ("", tokenizer.digest):
        raise ConfigError(f"models.{name}: the tokenizer in {folder} is not the one that this run was made with")
    return tokenizer


AGENT = "agent"
"""The role of a model that makes rollouts which are measured; where they are to be trained on it is the `policy`."""
CHAT_ROLES = frozenset({AGENT, "judge", "redundancy", "summarizer"})
"""Roles in which nothing is begun for the model, so that a service with only a chat route will do."""


def check_api(role: str, name: str, model: ModelSettings) -> None:
    """Raise ConfigError for a model that is asked over the chat route in a role that needs completions."""
    if model.api == "chat" and role not in CHAT_ROLES:
        raise ConfigError(
            f'models.{name}: api = "chat" will do for the agent of rollouts, judges and summarizer, but this is the '
            f"{role}, which goes on from text or token ids; name a model whose server completes prompts, such as vLLM"
        )


def check_sampling(role: str, name: str, sampling: Sampling, facts: ServerFacts) -> None:
    """Raise ConfigError for sampling in a role that the model's service has said it does not do."""
    fixed = {key: value for key, value in FIXED_VALUES.items() if key in facts.refused_keys}
    if all(getattr(sampling, key) == value for key, value in fixed.items()):
        return
    takes = " and ".join(f"no {key} but {value:g}" for key, value in fixed.items())
    where = "rollouts.sampling" if role == AGENT else f"the sampling of the {role}"
    raise ConfigError(f"models.{name}: its service takes {takes}; set that in {where}")


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model whose servers answered.

    Attributes:
        name: Its name in the configuration.
        meter: What completes requests, within the stage's budget.
        facts: What its servers said.
        tokenizer: None where it has none.
    """

    name: str
    meter: Meter
    facts: ServerFacts
    tokenizer: ChatTokenizer | None

    @property
    def codec(self) -> ChatTokenizer | None:
        """The tokenizer where requests carry token ids, else None: text mode."""
        return self.tokenizer if self.facts.token_ids else None

    def in_role(self, role: str, sampling: Sampling) -> RoleModel:
        """It as it is asked in a role beside the policy; raises ConfigError where it cannot play it."""
        settings = self.meter.pool.settings
        check_api(role, self.name, settings)
        check_sampling(role, self.name, sampling, self.facts)
        renderer = self.tokenizer if settings.api == "completions" else None
        return RoleModel(
            role,
            self.name,
            self.meter,
            sampling,
            self.codec,
            renderer,
            self.facts.max_model_len,
            chat_only=settings.api == "chat",
        )

    def engine(
        self,
        environment: EnvironmentSettings,
        sampling: Sampling,
        *,
        additional_calls: int = 0,
        role: str = "policy",
    ) -> RolloutEngine:
        """A rollout engine with it as policy or agent; `additional_calls` may be made beyond each limit.

        Raises ConfigError for a policy that has no completions, and for sampling that its service does not do.
        """
        check_api(role, self.name, self.meter.pool.settings)
        check_sampling(role, self.name, sampling, self.facts)
        limits = RolloutLimits(
            max_turns=environment.turn_limit(additional_calls),
            max_model_len=self.facts.max_model_len,
            max_trajectory_tokens=environment.max_trajectory_tokens,
            continue_unmarked=environment.on_unmarked == "continue",
        )
        return RolloutEngine(
            model=self.meter,
            codec=self.codec,
            sampling=sampling,
            limits=limits,
            protocol=environment.protocol,
            renderer=self.tokenizer,
            chat=self.meter if self.meter.pool.settings.api == "chat" else None,
        )

    def check_ids(self) -> None:
        """Say that it works in text mode, if it does; raises ConfigError where the configuration refuses that."""
        if self.codec is not None or self.meter.pool.settings.api == "chat":
            return
        if self.meter.pool.settings.token_ids == "required":
            raise ConfigError(f'models.{self.name}: token_ids = "required" needs a tokenizer; name its folder')
        _log.warning("models.%s works in text mode: rows have no token ids", self.name)


@dataclass(slots=True)
class Opening:
    """Opens what is asked for, each model once, and closes it all at the end of the block."""

    budget: TokenBudget
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _pools: list[ModelPool] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def model(self, name: str, settings: ModelSettings, tokenizer_digest: str = "") -> OpenModel:
        """A model whose every endpoint passed its check; raises ConfigError and EndpointUnavailable."""
        self.budget.check_price(name, settings)
        tokenizer = load_tokenizer(name, settings, tokenizer_digest)
        pool = next((known for known in self._pools if known.settings == settings), None)
        if pool is None:
            pool = await self._stack.enter_async_context(ModelPool(name, settings))
            facts = await pool.check(tokenizer)
            self._pools.append(pool)
            if dropped := [key for key in ("stop", "seed") if key in facts.refused_keys]:
                _log.warning("models.%s is asked without %s, which its service refuses", name, " and ".join(dropped))
        assert pool.facts is not None
        return OpenModel(name, Meter(pool, self.budget), pool.facts, tokenizer)

    async def tools(
        self,
        environment: EnvironmentSettings,
        summarizer: OpenModel | None,
        store: Callable[[str], KeyedStore] | None = None,
        *,
        misses_are_empty: bool = False,
    ) -> dict[str, Tool]:
        """The enabled tools, open, by name; `summarizer` reads what searches find. Raises ToolError.

        `store` gives a store of the run by its name; without one, the web can only be replayed. For
        `misses_are_empty` see `SearchTool`.
        """
        from treadle.agent.tools.summarizer import Summarizer

        reader = None
        if environment.summarizer is not None:
            if summarizer is None:
                raise ConfigError(
                    f"environment.search.summarizer names {environment.summarizer}, "
                    "but the stage was given no such model"
                )
            check_sampling("summarizer", summarizer.name, environment.search.summarizer_sampling, summarizer.facts)
            reader = Summarizer(
                summarizer.meter,
                environment.search.summarizer_sampling,
                codec=summarizer.codec,
                max_model_len=summarizer.facts.max_model_len,
                added_tokens=summarizer.tokenizer.added_tokens if summarizer.tokenizer else frozenset(),
            )
        tools = {}
        for tool in make_tools(environment, reader, store, misses_are_empty=misses_are_empty):
            tools[tool.name] = await self._stack.enter_async_context(tool)
        return tools
