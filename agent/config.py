"""The one environment: which tools, limits, times and texts an agent works with.

Flywheel, rollouts, RL and evaluation share this section, so that a policy meets everywhere what it was trained on.
Everything here is semantic: it decides what comes out. Normative table: docs/behaviour/agent.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from treadle.agent.prompts import FORMATS, Format, format_prompt, system_prompt
from treadle.agent.protocol import TOOL_PROTOCOL, Protocol
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.agent.tools.summarizer import summarizer_prompt
from treadle.agent.web.config import WEB_VERSION
from treadle.core.config import Added, Operational, Section, digest_json, semantic_dump, with_preset
from treadle.core.llm.config import Sampling

ENVIRONMENT_VERSION = 1
"""Raised when the meaning of an environment's settings changes."""

ET_AGENT_RL: dict[str, Any] = {
    "max_total_calls": 6,
    "on_limit": "silent",
    "result_format": "spaced",
    "python": {"time_limit_s": 120.0, "max_output_chars": None},
}
"""Preset `et-agent-rl`: the RL phase of arXiv 2601.06860, as the settings in which it differs from the default."""


class PythonSettings(Section):
    """The Python tool, as the agent meets it."""

    enabled: bool = True
    """Whether the agent may run programs."""
    max_calls: int = Field(default=6, ge=0)
    """Most executed calls of one rollout."""
    time_limit_s: float = Field(default=30.0, gt=0)
    """Wall time of one program."""
    max_output_chars: int | None = Field(default=1000, ge=16)
    """Longest result in characters, head and tail kept; none means untruncated."""
    sandbox: SandboxSettings = SandboxSettings()
    """How programs are isolated."""


class SummarizerSampling(Sampling):
    """How summaries of search results are sampled."""

    temperature: float = Field(default=0.7, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    repetition_penalty: float = Field(default=1.15, gt=0.0)
    """Divides the scores of tokens that already occur in prompt or answer; 1 means none."""


class SearchSettings(SearchToolSettings):
    """The search tool, as the agent meets it."""

    enabled: bool = True
    """Whether the agent may search."""
    max_calls: int = Field(default=6, ge=0)
    """Most executed calls of one rollout."""
    summarizer: str | None = None
    """Model, by its name under `models`, that reads the documents and tells the agent what serves its query; none
    means that the agent reads them itself."""
    summarizer_sampling: SummarizerSampling = SummarizerSampling()
    """How summaries are sampled."""


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of an environment by the format of the question."""

    plain: str
    """Of questions without a format."""
    by_format: Mapping[str, str]

    def of(self, question: Mapping[str, Any]) -> str:
        """For a row of `questions`."""
        return self.by_format.get(question.get("format") or "", self.plain)

    def __contains__(self, digest: object) -> bool:
        return digest == self.plain or digest in self.by_format.values()


class EnvironmentSettings(Section):
    """Tools, limits, prompt and result text of every rollout."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"et-agent-rl": ET_AGENT_RL}

    preset: Operational[str | None] = None
    """Named settings to start from, such as `et-agent-rl`; keys given beside it win."""
    prompt: Literal["auto", "both", "search", "python", "none"] = "auto"
    """System prompt: which tools it speaks of. `auto` follows the enabled tools."""
    system_prompt: str | None = None
    """A text that replaces the system prompt; empty means no system message."""
    format_prompts: Added[dict[Format, str]] = {}
    """What the system prompt adds for questions of a format (multiple_choice, assertion, fill_in, open_ended), also
    beside a `system_prompt` of your own, instead of the shipped text; an empty one adds nothing."""
    python: PythonSettings = PythonSettings()
    """The Python tool."""
    search: SearchSettings = SearchSettings()
    """The search tool."""
    max_total_calls: int | None = Field(default=None, ge=0)
    """Most executed calls of one rollout over all tools; none means only the limits per tool."""
    continuation_calls: int = Field(default=4, ge=0)
    """Calls that a continuation after an edit may make beyond each limit."""
    on_limit: Literal["notice", "silent", "stop"] = "notice"
    """What a call over the limit meets: a result block that says so (a second such call of the same tool ends the
    rollout), nothing at all, or the end of the rollout."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most generation calls of one rollout; none means the sum of the tools' limits plus 4."""
    max_trajectory_tokens: int | None = Field(default=None, ge=1)
    """Longest assistant turn in tokens, results included; reaching it ends the rollout with `budget`."""
    on_unmarked: Literal["end", "continue"] = "end"
    """What follows a turn without call or answer: the end (`no_answer`, or `length` if it was cut), or a next turn."""
    result_format: Literal["plain", "spaced"] = "plain"
    """`plain`: `<result>text</result>` directly after the call; `spaced`: a blank before it, newlines inside it."""
    rollout_time_s: float = Field(default=1200.0, gt=0)
    """Wall time of one rollout; passing it ends the rollout with `timeout`. While a policy is reinforced, time of its
    tool calls alone."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        return with_preset(cls.PRESETS, data)

    @property
    def protocol(self) -> Protocol:
        """The table of tags."""
        return TOOL_PROTOCOL

    @property
    def system_text(self) -> str:
        """The system message; empty for none."""
        return system_prompt(self.prompt_name) if self.system_prompt is None else self.system_prompt

    def system_text_of(self, form: str | None) -> str:
        """The system message for questions of a format, or of none; empty for none."""
        name = next((name for name in FORMATS if name == form), None)
        return "\n\n".join(filter(None, (self.system_text, name and self._format_text(name))))

    def _format_text(self, name: Format) -> str:
        if name in self.format_prompts:
            return self.format_prompts[name]
        # A prompt of the users' own is whole as it stands.
        return format_prompt(name) if self.system_prompt is None else ""

    @property
    def prompt_name(self) -> str:
        """Name of the prompt in force."""
        if self.prompt != "auto":
            return self.prompt
        enabled = self.enabled_tools
        return "both" if len(enabled) == 2 else enabled[0] if enabled else "none"

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """Names of the tools that may be called, in the order of the protocol."""
        return tuple(name for name in self.protocol.tools if self.call_limit(name) > 0)

    @property
    def summarizer(self) -> str | None:
        """Name of the model that summarizes what searches find; None where there is none, or no search."""
        return self.search.summarizer if self.call_limit("search") else None

    @property
    def searches_web(self) -> bool:
        """Whether any search goes to the web."""
        return self.call_limit("search") > 0 and self.search.uses_web

    def call_limit(self, tool: str, additional: int = 0) -> int:
        """Most executed calls of one tool; 0 where it is switched off."""
        tools: dict[str, PythonSettings | SearchSettings] = {"python": self.python, "search": self.search}
        limits = tools.get(tool)
        return limits.max_calls + additional if limits is not None and limits.enabled and limits.max_calls else 0

    def total_limit(self, additional: int = 0) -> int | None:
        """Most executed calls over all tools, or None."""
        return None if self.max_total_calls is None else self.max_total_calls + additional

    def turn_limit(self, additional: int = 0) -> int:
        """Most generation calls of one rollout."""
        if self.max_turns is not None:
            return self.max_turns + additional * len(self.enabled_tools)
        return sum(self.call_limit(tool, additional) for tool in self.protocol.tools) + 4

    def digest(self, form: str | None = None) -> str:
        """Hex digest of all that decides what an agent meets at a question of a format: prompt text, tags, tools,
        limits. Formats to which the system prompt adds nothing have the digest of none.

        Where the web comes from is no part of it; see `WebSettings.as_met`.
        """
        settings = self
        if (web := self.search.web) is not None:
            settings = self.model_copy(update={"search": self.search.model_copy(update={"web": web.as_met()})})
        parts = {"version": ENVIRONMENT_VERSION, "settings": semantic_dump(settings), "tags": self.protocol.as_json()}
        if self.summarizer is not None:
            parts["summarizer"] = summarizer_prompt()
        if self.searches_web:
            parts["web"] = WEB_VERSION
        return digest_json({**parts, "system": self.system_text_of(form)})

    def digests(self) -> Digests:
        """The digests of all formats."""
        return Digests(self.digest(), {name: self.digest(name) for name in FORMATS})
