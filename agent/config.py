"""Settings of the agent's environment: tools, limits, timeouts and prompt texts.

The flywheel, rollouts, RL and evaluation share this section, so that a policy is evaluated in the environment it was
trained in. All keys are semantic unless marked operational: they affect results. Rules:
docs/behaviour/agent.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from treadle.agent.dialect import TOOL_DIALECT, Dialect
from treadle.agent.prompts import FORMATS, Format, format_prompt, system_prompt
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.agent.tools.summarizer import summarizer_prompt
from treadle.core.config import Operational, Section, digest_json, semantic_dump, with_preset
from treadle.core.llm.config import Sampling
from treadle.web.config import WEB_VERSION

ENVIRONMENT_VERSION = 2
"""Version in the environment's digest; increment it if the meaning of a setting or of a rollout's row changes. Earlier
rollouts and pools are then made again: docs/behaviour/runs.md, "Versions"."""

ET_AGENT_RL: dict[str, Any] = {
    "max_total_calls": 6,
    "on_limit": "silent",
    "result_format": "spaced",
    "python": {"time_limit_s": 120.0, "max_output_chars": None},
}
"""Preset `et-agent-rl`: the RL phase of arXiv 2601.06860, as differences from the defaults."""


class PythonSettings(Section):
    """Settings of the Python tool."""

    enabled: bool = True
    """Enables the Python tool."""
    max_calls: int = Field(default=6, ge=0)
    """Most executed calls per rollout; 0 disables the tool."""
    time_limit_s: float = Field(default=30.0, gt=0)
    """Wall time limit of one program, in seconds."""
    max_output_chars: int | None = Field(default=1000, ge=16)
    """Longest result in characters. A longer one keeps its head and its tail; none means no limit."""
    sandbox: SandboxSettings = SandboxSettings()
    """How programs are isolated."""


class SummarizerSampling(Sampling):
    """Sampling parameters for summaries of search results."""

    temperature: float = Field(default=0.7, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    repetition_penalty: float = Field(default=1.15, gt=0.0)
    """Divides the scores of tokens that already occur in the prompt or the completion; 1 means none."""


class SearchSettings(SearchToolSettings):
    """Settings of the search tool."""

    enabled: bool = True
    """Enables the search tool."""
    max_calls: int = Field(default=6, ge=0)
    """Most executed calls per rollout; 0 disables the tool."""
    summarizer: str | None = None
    """Name under `models` of the model that summarizes the documents for the agent; none gives the agent the documents
    themselves."""
    summarizer_sampling: SummarizerSampling = SummarizerSampling()
    """Sampling parameters for summaries."""


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


class EnvironmentSettings(Section):
    """Tools, limits, prompt and result format of every rollout."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"et-agent-rl": ET_AGENT_RL}

    preset: Operational[str | None] = None
    """Name of the preset to start from, such as `et-agent-rl`. Keys that are set next to it override it."""
    prompt: Literal["auto", "both", "search", "python", "none"] = "auto"
    """Shipped system prompt, named after the tools that it describes. `auto` follows the enabled tools."""
    system_prompt: str | None = None
    """Text that replaces the shipped system prompt; an empty one means no system message."""
    format_prompts: dict[Format, str] = {}
    """Paragraphs appended to the system prompt for questions of a format (multiple_choice, assertion, fill_in,
    open_ended). They replace the shipped ones and also apply to a custom `system_prompt`; an empty text appends
    nothing."""
    python: PythonSettings = PythonSettings()
    """The Python tool."""
    search: SearchSettings = SearchSettings()
    """The search tool."""
    max_total_calls: int | None = Field(default=None, ge=0)
    """Most executed calls per rollout over all tools; none means that only the limits of each tool apply."""
    continuation_calls: int = Field(default=4, ge=0)
    """Calls that a continuation after an edit may make beyond each limit."""
    on_limit: Literal["notice", "silent", "stop"] = "notice"
    """Reaction to a call over a limit. `notice`: a result block says so, and a second such call of the same tool ends
    the rollout with `limit`; `silent`: nothing is appended and the model continues; `stop`: the rollout ends with
    `limit`."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most generation calls per rollout; none means the sum of the tools' limits plus 4."""
    max_trajectory_tokens: int | None = Field(default=None, ge=1)
    """Longest assistant turn in tokens, results included; at this length the rollout ends with `budget`."""
    on_unmarked: Literal["end", "continue"] = "end"
    """Reaction to a turn without a call or an answer. `end`: the rollout ends with `no_answer`, or with `length` if the
    turn was truncated; `continue`: the model generates another turn."""
    result_format: Literal["plain", "spaced"] = "plain"
    """Layout of results. `plain`: `<result>text</result>` directly after the call; `spaced`: a space before the block
    and newlines inside its markers."""
    rollout_time_s: float = Field(default=1200.0, gt=0)
    """Time limit of one rollout in seconds, without delays caused by infrastructure; past it the rollout ends with
    `timeout`. In reinforcement learning only the time of programs counts."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        return with_preset(cls.PRESETS, data)

    @property
    def dialect(self) -> Dialect:
        """Table of tags."""
        return TOOL_DIALECT

    @property
    def system_text(self) -> str:
        """System message without format paragraphs; empty for none."""
        return system_prompt(self.prompt_name) if self.system_prompt is None else self.system_prompt

    def system_text_of(self, form: str | None) -> str:
        """Return the system message for questions of a format (None: without one); empty for no system message."""
        name = next((name for name in FORMATS if name == form), None)
        return "\n\n".join(filter(None, (self.system_text, name and self._format_text(name))))

    def _format_text(self, name: Format) -> str:
        if name in self.format_prompts:
            return self.format_prompts[name]
        # A custom system prompt gets no shipped paragraphs.
        return format_prompt(name) if self.system_prompt is None else ""

    @property
    def prompt_name(self) -> str:
        """Name of the shipped prompt in use."""
        if self.prompt != "auto":
            return self.prompt
        enabled = self.enabled_tools
        return "both" if len(enabled) == 2 else enabled[0] if enabled else "none"

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """Names of the tools that may be called, in the order of the tag table."""
        return tuple(name for name in self.dialect.tools if self.call_limit(name) > 0)

    @property
    def summarizer(self) -> str | None:
        """Name of the model that summarizes search results; None without one, or if search is disabled."""
        return self.search.summarizer if self.call_limit("search") else None

    @property
    def searches_web(self) -> bool:
        """Whether any search uses the web."""
        return self.call_limit("search") > 0 and self.search.uses_web

    def call_limit(self, tool: str, additional: int = 0) -> int:
        """Return the most executed calls of one tool; 0 if it is disabled."""
        tools: dict[str, PythonSettings | SearchSettings] = {"python": self.python, "search": self.search}
        limits = tools.get(tool)
        return limits.max_calls + additional if limits is not None and limits.enabled and limits.max_calls else 0

    def total_limit(self, additional: int = 0) -> int | None:
        """Return the most executed calls over all tools; None for no limit."""
        return None if self.max_total_calls is None else self.max_total_calls + additional

    def turn_limit(self, additional: int = 0) -> int:
        """Return the most generation calls of one rollout."""
        if self.max_turns is not None:
            return self.max_turns + additional * len(self.enabled_tools)
        return sum(self.call_limit(tool, additional) for tool in self.dialect.tools) + 4

    def digest(self, form: str | None = None) -> str:
        """Return a hex digest of everything that affects an agent's rollout on a question of this format.

        It covers prompt text, tags, tools and limits. If the system prompt adds nothing for a format, its digest equals
        that for no format. The source of the web (provider or record) is excluded; see `WebSettings.without_source`.
        """
        settings = self
        if (web := self.search.web) is not None:
            settings = self.model_copy(update={"search": self.search.model_copy(update={"web": web.without_source()})})
        parts = {"version": ENVIRONMENT_VERSION, "settings": semantic_dump(settings), "tags": self.dialect.as_json()}
        if self.summarizer is not None:
            parts["summarizer"] = summarizer_prompt()
        if self.searches_web:
            parts["web"] = WEB_VERSION
        return digest_json({**parts, "system": self.system_text_of(form)})

    def digests(self) -> Digests:
        """Return the digests of all formats."""
        return Digests(self.digest(), {name: self.digest(name) for name in FORMATS})
