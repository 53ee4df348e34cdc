"""Settings of the environment `question`: tools, limits, timeouts and prompt texts. Rules: docs/behaviour/agent.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from treadle.agent.contract import Task
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.dialects.tags import SPACED_TOOL_DIALECT, TOOL_DIALECT, TagDialect
from treadle.agent.prompts import FORMATS, Format, format_prompt, system_prompt
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.core.config import Operational, Section, with_preset
from treadle.core.llm.config import Sampling
from treadle.environments.question.schemas import schema_of
from treadle.environments.settings import Digests, EnvironmentSettings
from treadle.web.config import AGENT_WINDOW_CHARS, WEB_VERSION, WebSettings

ET_AGENT_RL: dict[str, Any] = {
    "max_total_calls": 6,
    "on_limit": "silent",
    "result_format": "spaced",
    "python": {"time_limit_s": 120.0, "max_output_chars": None},
}
"""Preset `et-agent-rl`: the RL phase of arXiv 2601.06860, as differences from the defaults."""


_UNLIMITED_TURNS = 10
"""Turns that a tool without a limit adds to the default of `max_turns`."""


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


class QuestionSettings(EnvironmentSettings):
    """Tools, limits, prompt and result format of every rollout."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"et-agent-rl": ET_AGENT_RL}

    preset: Operational[str | None] = None
    """Name of the preset to start from, such as `et-agent-rl`. Keys that are set next to it override it."""
    prompt: Literal["auto", "both", "search", "python", "none", "functions"] = "auto"
    """Shipped system prompt, named after the tools that it describes. `auto` follows the enabled tools; with native
    calls it is `functions`."""
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
    """Reaction to a call over a limit. `notice`: a result block reports it, and a second such call of the same tool
    ends the rollout with `limit`; `silent`: nothing is appended and the model continues; `stop`: the rollout ends with
    `limit`."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most generation calls per rollout; none means the sum of the tools' limits plus 4. An entry of `tools` without a
    limit counts as 10."""
    on_unmarked: Literal["end", "continue"] = "end"
    """Reaction to a turn without a call or an answer. `end`: the rollout ends with `no_answer`, or with `length` if the
    turn was truncated; `continue`: the model generates another turn."""
    dialect: Literal["auto", "tags", "functions"] = "auto"
    """How calls and answers are written. `tags`: between tags such as `<search>` inside one assistant turn;
    `functions`: native tool calls, in the form of the model's chat template or through the `tools` of a chat service;
    `auto`: `functions` if `tools` has entries."""
    result_format: Literal["plain", "spaced"] = "plain"
    """Layout of results. `plain`: `<result>text</result>` directly after the call; `spaced`: a space before the block
    and newlines inside its markers."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        return with_preset(cls.PRESETS, data)

    @property
    def turn_dialect(self) -> TagDialect | FunctionsDialect:
        """See `EnvironmentSettings`."""
        if self.uses_functions:
            return FunctionsDialect()
        return SPACED_TOOL_DIALECT if self.result_format == "spaced" else TOOL_DIALECT

    @property
    def uses_functions(self) -> bool:
        """Whether tools are called natively, not between tags."""
        return self.dialect == "functions" or (self.dialect == "auto" and bool(self.tools))

    @model_validator(mode="after")
    def _check_dialect(self) -> Self:
        if self.tools and self.dialect == "tags":
            raise ValueError('tools of your own are called natively: leave out dialect = "tags"')
        if taken := sorted({"python", "search"} & self.tools.keys()):
            raise ValueError(f"tools.{taken[0]} has the name of a shipped tool, which has its own table; rename it")
        return self

    @property
    def version(self) -> int:
        """See `EnvironmentSettings`."""
        return 1

    @property
    def known_tools(self) -> tuple[ToolSchema, ...]:
        """See `EnvironmentSettings`; tags are described by the system message."""
        if not self.uses_functions:
            return ()
        return (*map(schema_of, self.enabled_tools), *super().known_tools)

    def first_messages(self, task: Task) -> list[dict[str, str]]:
        """Return the system message, if there is one, and the question."""
        system = self.system_text_of(task.format)
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": task.user_message}]

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
        if self.uses_functions:
            return "functions"
        enabled = self.enabled_tools
        return "both" if len(enabled) == 2 else enabled[0] if enabled else "none"

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """Names of the tools that may be called, in the order of `TOOL_DIALECT`."""
        return tuple(name for name in TOOL_DIALECT.tools if self.call_limit(name) > 0)

    @property
    def summarizer(self) -> str | None:
        """Name of the model that summarizes search results; None without one, or if search is disabled."""
        return self.search.summarizer if self.call_limit("search") else None

    @property
    def summarizer_name(self) -> str | None:
        """See `EnvironmentSettings`."""
        return self.search.summarizer

    @property
    def summarizer_sampling(self) -> Sampling | None:
        """See `EnvironmentSettings`."""
        return self.search.summarizer_sampling

    @property
    def search_tool(self) -> SearchSettings | None:
        """See `EnvironmentSettings`."""
        return self.search if self.call_limit("search") else None

    def with_search(self, search: SearchToolSettings) -> Self:
        """See `EnvironmentSettings`."""
        return self.model_copy(update={"search": search})

    def with_interpreter(self, interpreter: Path | None) -> Self:
        """See `EnvironmentSettings`."""
        if interpreter is None:
            return self
        changed: dict[str, Any] = {
            "tools": {name: one.with_interpreter(interpreter) for name, one in self.tools.items()}
        }
        sandbox = self.python.sandbox
        if sandbox.interpreter is None:
            changed["python"] = self.python.model_copy(
                update={"sandbox": sandbox.model_copy(update={"interpreter": interpreter})}
            )
        return self.model_copy(update=changed)

    @property
    def num_system_chars(self) -> int:
        """See `EnvironmentSettings`."""
        return len(self.system_text)

    @property
    def num_continuation_calls(self) -> int:
        """See `EnvironmentSettings`."""
        return self.continuation_calls

    @property
    def num_result_chars(self) -> float:
        """See `EnvironmentSettings`; the mean over the enabled tools, 0 without tools."""
        lengths = [_search_chars(self.search)] if self.call_limit("search") else []
        if self.call_limit("python"):
            # Programs print far less than they may.
            lengths.append((self.python.max_output_chars or 1_000) // 4)
        of_others = super().num_result_chars
        lengths += [of_others for tool in self.tools.values() if tool.max_calls != 0]
        return sum(lengths) / len(lengths) if lengths else 0.0

    @property
    def searches_web(self) -> bool:
        """Whether any search uses the web."""
        return self.call_limit("search") > 0 and self.search.uses_web

    def call_limit(self, tool: str, additional: int = 0) -> int:
        """Return the most executed calls of one tool; 0 if it is disabled."""
        limits = self.python if tool == "python" else self.search if tool == "search" else None
        return limits.max_calls + additional if limits is not None and limits.enabled and limits.max_calls else 0

    def entry_limit(self, entry: str, additional: int = 0) -> int | None:
        """Return the most executed calls of each tool of an entry of `tools`, or of a shipped tool; None: no limit."""
        own = self.tools.get(entry)
        if own is None:
            return self.call_limit(entry, additional)
        return None if own.max_calls is None else own.max_calls + additional

    def total_limit(self, additional: int = 0) -> int | None:
        """Return the most executed calls over all tools; None for no limit."""
        return None if self.max_total_calls is None else self.max_total_calls + additional

    def turn_limit(self, additional: int = 0) -> int:
        """Return the most generation calls of one rollout."""
        if self.max_turns is not None:
            return self.max_turns + additional * (len(self.enabled_tools) + len(self.tools))
        limits = [self.call_limit(tool, additional) for tool in TOOL_DIALECT.tools]
        for tool in self.tools.values():
            limits.append(_UNLIMITED_TURNS if tool.max_calls is None else tool.max_calls + additional)
        return sum(limits) + 4

    def digest_parts(self, form: str | None) -> dict[str, Any]:
        """Return the prompt, and texts and versions that summaries and web results depend on.

        A format for which the system prompt has no paragraph has the same digest as questions without a format.
        """
        parts: dict[str, Any] = {"system": self.system_text_of(form)}
        if self.summarizer is not None:
            from treadle.agent.tools.summarizer import summarizer_prompt

            parts["summarizer"] = summarizer_prompt()
        if self.searches_web:
            parts["web"] = WEB_VERSION
        return parts

    def without_source(self) -> Self:
        """See `EnvironmentSettings`; see also `WebSettings.without_source`."""
        if (web := self.search.web) is None:
            return self
        return self.model_copy(update={"search": self.search.model_copy(update={"web": web.without_source()})})

    def digests(self) -> Digests:
        """Return the digests of all formats."""
        return Digests(self.digest(), {name: self.digest(name) for name in FORMATS})


def _search_chars(search: SearchSettings) -> float:
    """Return the characters of a search result: the sum over local index and web for route `both`, else the mean."""
    places = [search.top_n * search.document_chars] if search.uses_local else []
    if search.uses_web and search.web is not None:
        places.append(_web_chars(search.web))
    return sum(places) if search.route == "both" else sum(places) / len(places)


def _web_chars(web: WebSettings) -> int:
    """Return the characters of a web result with all pages fetched, as shown to the agent without a summarizer."""
    page = web.snippet_chars + (2 * (web.window_chars or AGENT_WINDOW_CHARS) if web.pages else 0)
    return min(web.max_chars, web.top_n * page)
