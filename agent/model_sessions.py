"""Open the models of a stage and build its rollout engines."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from treadle.agent.dialects.base import Dialect
from treadle.agent.metering import Meter, TokenBudget
from treadle.agent.model_types import RolloutLimits
from treadle.agent.role import RoleModel
from treadle.agent.role_settings import AGENT
from treadle.agent.rollout import RolloutEngine
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.hosted import FIXED_VALUES
from treadle.core.llm.oddities import odd_sentences
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.server_notes import missing_ids, server_notes
from treadle.core.llm.stops import UNKNOWN
from treadle.core.llm.types import EndpointState, ServerFacts

_log = logging.getLogger(__name__)


def load_tokenizer(name: str, model: ModelSettings, digest: str) -> ChatTokenizer | None:
    """Return the tokenizer of a model, or None if it has none. Raises ConfigError if its digest is not `digest`."""
    folder = model.tokenizer
    if folder is None:
        return None
    tokenizer = ChatTokenizer.load(folder)
    if digest not in ("", tokenizer.digest):
        raise ConfigError(
            f"models.{name}: the tokenizer in {folder} differs from the one that this run was started with; "
            "restore its files, or start a new run"
        )
    return tokenizer


_NEEDS_NO_STOPS = frozenset({"judge", "redundancy", "summarizer"})
"""Roles that are asked without stop strings."""


def check_trained(name: str, model: ModelSettings) -> None:
    """Raise ConfigError for a policy that should be trained on its own rollouts, but has no token ids."""
    if not model.continues_text:
        raise ConfigError(
            f'models.{name}: api = "chat" has no token ids, which rollouts need that train their own policy; name a '
            "model whose server completes prompts, such as vLLM"
        )


def check_sampling(role: str, name: str, sampling: Sampling, facts: ServerFacts) -> None:
    """Raise ConfigError for sampling parameters that the model's service refuses."""
    fixed = {key: value for key, value in FIXED_VALUES.items() if key in facts.refused_keys}
    if all(getattr(sampling, key) == value for key, value in fixed.items()):
        return
    takes = " and ".join(f"no {key} but {value:g}" for key, value in fixed.items())
    where = "rollouts.sampling" if role == AGENT else f"the sampling of the {role}"
    raise ConfigError(f"models.{name}: its service accepts {takes}; set that in {where}")


def check_stops(role: str, name: str, model: ModelSettings, facts: ServerFacts) -> None:
    """Raise ConfigError for a role that needs stop strings if a server's stop behaviour could not be determined."""
    unknown = [url for url, style in facts.stops.items() if style == UNKNOWN]
    if unknown and model.continues_text and role not in _NEEDS_NO_STOPS:
        raise ConfigError(
            f"models.{name}: {', '.join(unknown)} does not show whether answers end before or after a stop string: "
            "asked to continue short texts, it returned nothing, or something else each time. Tool calls could be "
            "lost; check that it completes text with this model, or serve the model with vLLM"
        )


@dataclass(frozen=True, slots=True)
class ModelSession:
    """Model whose endpoints passed their checks.

    Attributes:
        name: Name in the configuration.
        meter: Completes requests within the stage's budget.
        facts: What the check of its servers found.
        tokenizer: None if the model has none.
    """

    name: str
    meter: Meter
    facts: ServerFacts
    tokenizer: ChatTokenizer | None

    @property
    def codec(self) -> ChatTokenizer | None:
        """Tokenizer if requests carry token ids; None in text mode."""
        return self.tokenizer if self.facts.token_ids else None

    def for_role(self, role: str, sampling: Sampling, *, only_messages: bool = False) -> RoleModel:
        """Return the model for a role other than the policy. Raises ConfigError if it cannot take that role.

        With `only_messages`, the role is asked with messages alone, never with a prefill or stop strings.
        """
        settings = self.meter.pool.settings
        check_sampling(role, self.name, sampling, self.facts)
        if not only_messages:
            check_stops(role, self.name, settings, self.facts)
        renderer = self.tokenizer if settings.continues_text else None
        return RoleModel(
            role,
            self.name,
            self.meter,
            sampling,
            self.codec,
            renderer,
            self.facts.max_model_len,
            continues_text=settings.continues_text,
        )

    def engine(
        self, dialect: Dialect, limits: RolloutLimits, sampling: Sampling, *, role: str = "policy"
    ) -> RolloutEngine:
        """Return a rollout engine with this model as policy or agent.

        Raises ConfigError if the sampling or the stop strings do not suit the role.
        """
        check_sampling(role, self.name, sampling, self.facts)
        if dialect.stops:
            check_stops(role, self.name, self.meter.pool.settings, self.facts)
        return RolloutEngine(
            model=self.meter,
            codec=self.codec,
            sampling=sampling,
            limits=limits,
            dialect=self.bound(dialect),
            renderer=self.tokenizer,
            chat=None if self.meter.pool.settings.continues_text else self.meter,
            returns_reasoning=self.facts.needs_reasoning,
        )

    def bound(self, dialect: Dialect) -> Dialect:
        """Return the dialect adapted to this model's tokenizer and API."""
        return dialect.bound(self.tokenizer, is_chat=not self.meter.pool.settings.continues_text)

    def check_token_ids(self) -> None:
        """Warn if rollouts have no token ids. Raises ConfigError if the configuration requires them."""
        settings = self.meter.pool.settings
        if self.codec is None and settings.continues_text and settings.token_ids == "required":
            raise ConfigError(f'models.{self.name}: token_ids = "required" needs a tokenizer; name its folder')
        if missing := missing_ids(settings, self.facts, has_tokenizer=self.tokenizer is not None):
            # The chat API never gives token ids, so there it is no reason for a warning.
            _log.log(logging.INFO if settings.api == "chat" else logging.WARNING, "models.%s %s", self.name, missing)


@dataclass(slots=True)
class ModelSessions:
    """Context manager that opens models, each once, and closes them all at the end of the block."""

    budget: TokenBudget
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _pools: list[ModelPool] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools:
            for sentence in odd_sentences(pool.stats.odd):
                # The sentence is the log message itself, not an argument, so that no two kinds count as the same
                # message.
                _log.warning(f"models.{pool.name}: {sentence}")
        await self._stack.__aexit__(kind, error, trace)

    def endpoint_states(self) -> list[tuple[str, EndpointState]]:
        """Return the name of the model and the state of each endpoint of the models opened so far."""
        return [(pool.name, state) for pool in self._pools for state in pool.endpoint_states()]

    async def model(
        self, name: str, settings: ModelSettings, tokenizer_digest: str = "", *, calls_tools: bool = False
    ) -> ModelSession:
        """Open a model and check all its endpoints; `calls_tools`: its requests will carry native tools.

        Raises ConfigError and EndpointUnavailable.
        """
        self.budget.check_price(name, settings)
        tokenizer = load_tokenizer(name, settings, tokenizer_digest)
        pool = next((known for known in self._pools if known.settings == settings), None)
        if pool is None:
            pool = await self._stack.enter_async_context(ModelPool(name, settings))
            facts = await pool.check(tokenizer, calls_tools=calls_tools)
            self._pools.append(pool)
            for note in server_notes(settings, facts):
                # The note is the log message itself, not an argument, so that no two notes count as the same message.
                _log.log(logging.WARNING if note.is_loss else logging.INFO, f"models.{name} {note.text}")
        assert pool.facts is not None
        return ModelSession(name, Meter(pool, self.budget), pool.facts, tokenizer)
