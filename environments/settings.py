"""Define the settings that every type of environment has, and their properties that stages read.

The flywheel, rollouts, RL and evaluation share this section, so that a policy is evaluated in the environment it was
trained in. All keys are semantic unless marked operational: they affect results. Rules: docs/behaviour/environments.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from treadle.agent.contexts.clipping import CLIPPER
from treadle.agent.contexts.settings import ContextSettings
from treadle.agent.contract import Task
from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.free import FreeDialect
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.agent.tools.settings import ToolSettings
from treadle.agent.trimming import Trimming
from treadle.core.config import CountsIfSet, Section, digest_json, semantic_dump
from treadle.core.errors import ConfigError
from treadle.core.llm.config import Sampling
from treadle.core.registry import Entry
from treadle.environments.tools.registry import AnyTool, check_names

ENVIRONMENT_VERSION = 5
"""Version in the environment's digest; increment it if the meaning of a setting or of a rollout's row changes. Earlier
rollouts and pools are then made again: docs/behaviour/runs.md, "Versions"."""


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of an environment, one per question format."""

    plain: str
    """Digest for questions without a format."""
    by_format: Mapping[str, str]

    def of(self, question: Mapping[str, Any]) -> str:
        """Return the digest for a row of `questions`."""
        return self.by_format.get(question.get("format") or "", self.plain)

    def __contains__(self, digest: object) -> bool:
        return digest == self.plain or digest in self.by_format.values()


DEFAULT_TYPE = "question"
"""Type of a configuration that names none."""


class EnvironmentRole(Section):
    """Model that episodes ask in a role."""

    model: str
    """Name of the model under `models`."""
    sampling: Sampling = Sampling()
    """Sampling parameters of its answers."""


class EnvironmentSettings(Entry):
    """Type and limits of the environment of every rollout."""

    type: str = DEFAULT_TYPE
    """Type of the environment: a shipped one, `my_envs.py:Guess` for a class in a file next to the configuration,
    `package.module:Guess`, or the name of an entry point in the group `treadle.environments`."""
    tools: dict[str, AnyTool] = {}
    """Tools by name, in addition to those that the type has; see docs/guides/tools.md."""
    roles: dict[str, EnvironmentRole] = {}
    """Models that episodes ask, by role, for types that ask models; default: the model with the name of the role."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most generation calls per rollout; none means the default of the type."""
    max_trajectory_tokens: int | None = Field(default=None, ge=1)
    """Most tokens after the prompt, results and messages included; at this length the rollout ends with `budget`."""
    rollout_time_s: float = Field(default=1200.0, gt=0)
    """Time limit of one rollout in seconds, without delays caused by infrastructure; past it the rollout ends with
    `timeout`. In reinforcement learning only the run time of programs in tool calls counts."""
    context: CountsIfSet[ContextSettings] = ContextSettings()
    """How the context of a rollout is managed."""

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        if self.reserve_tokens is not None and self.context.rule is not None:
            raise ValueError(
                f'context.manager = "{self.context.manager}" cannot be combined with trim_reserve_tokens; leave one out'
            )
        return self

    @field_validator("tools")
    @classmethod
    def _check_tool_names(cls, tools: dict[str, ToolSettings]) -> dict[str, ToolSettings]:
        try:
            check_names({name: tool.known_schemas(name) for name, tool in tools.items() if tool.max_calls != 0})
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return tools

    @property
    def turn_dialect(self) -> Dialect:
        """How the model's turns are read and written."""
        return FreeDialect()

    @property
    def has_several_contexts(self) -> bool:
        """Whether a rollout may consist of several token sequences."""
        return self.reserve_tokens is not None or self.context.rule is not None

    def prompt_messages(self, task: Task) -> list[dict[str, str]] | None:
        """Return `first_messages`, with the hint that the context's manager adds to the last one."""
        messages, hint = self.first_messages(task), self.context.prompt_hint
        if not messages or not hint:
            return messages
        *others, last = messages
        return [*others, {**last, "content": f"{last['content']}\n\n{hint}"}]

    @property
    def reserve_tokens(self) -> int | None:
        """Tokens of the window that a turn needs, so that the context is trimmed before it; None for no trimming."""
        return None

    @property
    def kept_kinds(self) -> frozenset[str]:
        """Kinds of the segments that a trim leaves in the context."""
        return frozenset()

    @property
    def trimming(self) -> Trimming | None:
        """How a context that gets too long for the window is trimmed; None to end the rollout instead."""
        return None if self.reserve_tokens is None else Trimming(self.reserve_tokens, self.kept_kinds)

    @property
    def known_tools(self) -> tuple[ToolSchema, ...]:
        """Tools described to the model by their schemas, without those that only an open server can list."""
        return tuple(schema for name, tool in self.tools.items() for schema in tool.known_schemas(name))

    def first_messages(self, task: Task) -> list[dict[str, str]] | None:
        """Return the messages before the first turn, if they depend on nothing but the task; else None."""
        return None

    @property
    def version(self) -> int:
        """Version of the type; increment it if episodes become different."""
        return 1

    @property
    def role_names(self) -> tuple[str, ...]:
        """Names of the roles whose models episodes ask."""
        return ()

    @property
    def role_models(self) -> dict[str, EnvironmentRole]:
        """Model and sampling of each role that episodes ask."""
        found = {name: self.roles.get(name, EnvironmentRole(model=name)) for name in self.role_names}
        if self.context.asks_for_verdicts and CLIPPER in self.roles:
            found[CLIPPER] = self.roles[CLIPPER]
        return found

    @property
    def summarizer_key(self) -> str:
        """Key of this table that names the summarizer, for messages."""
        return "search.summarizer"

    @property
    def summarizer(self) -> str | None:
        """Name of the model that summarizes search results; None without one."""
        return None

    @property
    def summarizer_name(self) -> str | None:
        """Name of the model that is configured to summarize search results, whether or not anything is searched."""
        return None

    @property
    def summarizer_sampling(self) -> Sampling | None:
        """Sampling parameters of summaries."""
        return None

    @property
    def search_tool(self) -> SearchToolSettings | None:
        """Settings of the search tool; None if nothing is searched."""
        return None

    @property
    def searches_web(self) -> bool:
        """Whether any search uses the web."""
        return False

    def with_search(self, search: SearchToolSettings) -> Self:
        """Return the settings with other settings of the search tool."""
        return self

    def with_interpreter(self, interpreter: Path | None) -> Self:
        """Return the settings with a Python interpreter for programs of the agent, unless they name one.

        The interpreter must have the packages of the sandbox.
        """
        return self

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """Names of the tools that may be called."""
        return ()

    def call_limit(self, tool: str, additional: int = 0) -> int:
        """Return the most executed calls of one tool; 0 if it is disabled."""
        return 0

    def turn_limit(self, additional: int = 0) -> int:
        """Return the most generation calls of one rollout; `additional` calls of each tool may come on top."""
        return 10 if self.max_turns is None else self.max_turns

    @property
    def num_result_chars(self) -> float:
        """Expected length of a result or a message of the environment, in characters, for estimates."""
        return 400.0

    @property
    def num_system_chars(self) -> int:
        """Length of the system message in characters, for estimates."""
        return 0

    @property
    def num_continuation_calls(self) -> int:
        """Calls that a continuation after an edit may make beyond each limit."""
        return 0

    def digest_parts(self, form: str | None) -> dict[str, Any]:
        """Return further content that the digest covers, besides the settings; `form` is a question format."""
        return {}

    def without_source(self) -> Self:
        """Return the settings without keys that only decide from where the environment's content is loaded."""
        return self

    def digest(self, form: str | None = None) -> str:
        """Return a hex digest of everything that affects a rollout on a question of this format."""
        parts = {
            "version": [ENVIRONMENT_VERSION, self.version],
            "settings": semantic_dump(self.without_source()),
            "dialect": self.turn_dialect.as_json(),
        }
        if self.tools:
            parts["tools"] = {name: tool.version for name, tool in self.tools.items()}
        return digest_json({**parts, **self.digest_parts(form)})

    def digests(self) -> Digests:
        """Return the digests of all formats."""
        return Digests(self.digest(), {})
