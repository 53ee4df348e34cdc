"""Settings of the environment `planning`: dialect, scheduling, tools and limits. Rules: docs/behaviour/planning.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from treadle.agent.contract import Task
from treadle.agent.prompts import FORMATS, format_prompt
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.core.config import CountsIfSet
from treadle.core.llm.config import Sampling
from treadle.environments.planning.dialect import PLAN, DialectName, PlanningDialect, planning_dialect, tools_of
from treadle.environments.planning.places import FILLER
from treadle.environments.planning.prompts import instructions
from treadle.environments.planning.scheduler import Scheduling
from treadle.environments.planning.tools.settings import (
    VISION,
    CodeSettings,
    PlanningCrawlSettings,
    VisualInspectorSettings,
)
from treadle.environments.settings import Digests, EnvironmentRole, EnvironmentSettings
from treadle.web.config import WEB_VERSION

SEARCH_TAGS = ("wiki_search", "web_search", "search")
"""Tags that call the search tool."""
_MAX_TURNS = {"web": 25, "all": 25}
_DEFAULT_MAX_TURNS = 8

PromptName = Literal["auto", "mhqa", "mhqa_example", "gap", "web", "code", "all", "search_r1"]


class PlanningSearchSettings(SearchToolSettings):
    """Settings of the search tool of planning agents."""

    max_calls: int = Field(default=64, ge=0)
    """Most executed calls per rollout; 0 disables the tool."""
    top_n: int = Field(default=3, ge=1, le=100)
    """Documents per query."""


class PlanningSettings(EnvironmentSettings):
    """Dialect, scheduling, tools and limits of every rollout of a planning agent."""

    type: str = "planning"
    """Type of the environment."""
    dialect: DialectName = "gap"
    """Tags of the agent. `gap`: plans as graphs, several queries in one search; `mhqa`: one step after the other;
    `web`: web search and pages; `code`: Python; `all`: web, pages, Python and pictures; `search-r1`: thoughts, searches
    and the answer alone."""
    scheduling: Scheduling = "levels"
    """What the calls of a turn wait for. `tags`: nothing, all start at once; `levels`: all calls of the level before in
    the plan; `dataflow`: the calls that their own task depends on. Without a plan that can be read it is `tags`."""
    max_parallel_calls: int | None = Field(default=8, ge=1)
    """Most calls of a rollout that run at once; further ones wait. None means no limit."""
    max_plan_nodes: int = Field(default=PlanningDialect.max_nodes, ge=1, le=256)
    """Most tasks of a plan; a larger plan is not followed."""
    several_tags: bool = True
    """Whether a turn may have several tags with calls; otherwise it ends at the first one."""
    places: Literal["first_sentence", "model"] = "first_sentence"
    """What a placeholder such as `{T1}` in a call is filled with. `first_sentence`: the first sentence of the result's
    first document; `model`: a short value that the model in the role `filler` reads out of the result."""
    prompt: PromptName = "auto"
    """Shipped instructions before the question; `auto`: those for the dialect."""
    instructions: str | None = None
    """Text that replaces the shipped instructions; an empty text leaves them out."""
    search: PlanningSearchSettings = PlanningSearchSettings()
    """The search tool, which the tags `wiki_search`, `web_search` and `search` call."""
    crawl_page: PlanningCrawlSettings = PlanningCrawlSettings()
    """The tool that reads pages."""
    code: CodeSettings = CodeSettings()
    """The tool that runs Python programs."""
    visual_inspector: VisualInspectorSettings = VisualInspectorSettings()
    """The tool that describes pictures."""
    max_total_calls: int | None = Field(default=None, ge=0)
    """Most executed calls per rollout over all tools; none means that only the limits of each tool apply."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most generation calls per rollout; none means 25 for `web` and `all`, else 8, as in training; AFM
    evaluates with up to 36 on the web, and with up to 12 calls, so 13 turns, in code. Before the last one a notice says
    that only an answer is accepted; its calls are not run."""
    trim_reserve_tokens: CountsIfSet[int | None] = Field(default=None, ge=1)
    """Tokens of the model's window that a turn needs, as in AFM's 4,096: if fewer are left, plans, reflections, results
    that the model has not read, and the most recent other segments that fit stay in its context. None means that a
    full context ends the rollout."""
    rollout_time_s: float = Field(default=3600.0, gt=0)
    """Time limit of one rollout in seconds, without delays caused by infrastructure; past it the rollout ends with
    `timeout`. In reinforcement learning only the run time of programs in tool calls counts."""

    @property
    def turn_dialect(self) -> PlanningDialect:
        """See `EnvironmentSettings`."""
        return planning_dialect(
            self.dialect,
            (*self.enabled_tools, *(name for name, tool in self.tools.items() if tool.max_calls != 0)),
            several=self.several_tags,
            runs_plans=self.scheduling != "tags",
            max_nodes=self.max_plan_nodes,
        )

    @property
    def reserve_tokens(self) -> int | None:
        """See `EnvironmentSettings`."""
        return self.trim_reserve_tokens

    @property
    def kept_kinds(self) -> frozenset[str]:
        """See `EnvironmentSettings`."""
        return frozenset({PLAN, "reflection"})

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        taken = sorted({*tools_of(self.dialect), *SEARCH_TAGS, "think", "plan", "answer"} & self.tools.keys())
        if taken:
            raise ValueError(f"tools.{taken[0]} has the name of a tag of planning agents; rename it")
        return self

    @property
    def known_tools(self) -> tuple[ToolSchema, ...]:
        """See `EnvironmentSettings`; tags are described by the instructions."""
        return ()

    def first_messages(self, task: Task) -> list[dict[str, str]] | None:
        """See `EnvironmentSettings`; tools of `tools` are known once their sources are open."""
        return None if self.tools else [{"role": "user", "content": self.user_text(task)}]

    def user_text(self, task: Task, more: str = "") -> str:
        """Return the instructions and the task; `more` are further paragraphs of instructions."""
        name = next((name for name in FORMATS if name == task.format), None)
        form = "" if name is None or self.instructions is not None else format_prompt(name)
        heading = "Task" if self.dialect == "code" else "Question"
        parts = (self.shown_instructions, form, more, f"{heading}: {task.user_message}")
        return "\n\n".join(filter(None, parts))

    @property
    def shown_instructions(self) -> str:
        """Text before the question."""
        return instructions(self._prompt_name) if self.instructions is None else self.instructions

    @property
    def _prompt_name(self) -> str:
        return self.dialect.replace("-", "_") if self.prompt == "auto" else self.prompt

    @property
    def role_names(self) -> tuple[str, ...]:
        """See `EnvironmentSettings`."""
        asks_vision = self.call_limit("visual_inspector") > 0 and "visual_inspector" in tools_of(self.dialect)
        return (*((FILLER,) if self.places == "model" else ()), *((VISION,) if asks_vision else ()))

    @property
    def role_models(self) -> dict[str, EnvironmentRole]:
        """See `EnvironmentSettings`."""
        found = super().role_models
        return {name: self.visual_inspector.vision if name == VISION else one for name, one in found.items()}

    @property
    def summarizer_key(self) -> str:
        """See `EnvironmentSettings`."""
        return "crawl_page.summarizer"

    @property
    def summarizer(self) -> str | None:
        """See `EnvironmentSettings`."""
        return self.crawl_page.summarizer if "crawl_page" in self.enabled_tools else None

    @property
    def summarizer_name(self) -> str | None:
        """See `EnvironmentSettings`."""
        return self.crawl_page.summarizer

    @property
    def summarizer_sampling(self) -> Sampling | None:
        """See `EnvironmentSettings`."""
        return self.crawl_page.summarizer_sampling

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """Names of the tools that may be called, in the order of the dialect."""
        return tuple(name for name in tools_of(self.dialect) if self.call_limit(name) > 0)

    @property
    def search_tag(self) -> str | None:
        """Tag that searches; None if nothing is searched."""
        return next((name for name in self.enabled_tools if name in SEARCH_TAGS), None)

    @property
    def search_tool(self) -> PlanningSearchSettings | None:
        """See `EnvironmentSettings`."""
        return self.search if self.search_tag is not None else None

    def with_search(self, search: SearchToolSettings) -> Self:
        """See `EnvironmentSettings`."""
        return self.model_copy(update={"search": search})

    @property
    def searches_web(self) -> bool:
        """See `EnvironmentSettings`; pages are read from there, too."""
        return (self.search_tag is not None and self.search.uses_web) or "crawl_page" in self.enabled_tools

    def with_interpreter(self, interpreter: Path | None) -> Self:
        """See `EnvironmentSettings`."""
        if interpreter is None:
            return self
        changed: dict[str, Any] = {
            "tools": {name: one.with_interpreter(interpreter) for name, one in self.tools.items()}
        }
        sandbox = self.code.sandbox
        if sandbox.interpreter is None:
            own = sandbox.model_copy(update={"interpreter": interpreter})
            changed["code"] = self.code.model_copy(update={"sandbox": own})
        return self.model_copy(update=changed)

    def call_limit(self, tool: str, additional: int = 0) -> int:
        """See `EnvironmentSettings`."""
        limit = self.search.max_calls if tool in SEARCH_TAGS else 0
        if tool == "crawl_page" and self.search.web is not None:
            limit = self.crawl_page.max_calls if self.crawl_page.enabled else 0
        elif tool == "code":
            limit = self.code.max_calls if self.code.enabled else 0
        elif tool == "visual_inspector":
            limit = self.visual_inspector.max_calls if self.visual_inspector.enabled else 0
        return limit + additional if limit else 0

    def entry_limit(self, entry: str, additional: int = 0) -> int | None:
        """Return the most executed calls of a tag; None for no limit."""
        own = self.tools.get(entry)
        if own is None:
            return self.call_limit(entry, additional)
        return None if own.max_calls is None else own.max_calls + additional

    def total_limit(self, additional: int = 0) -> int | None:
        """Return the most executed calls over all tools; None for no limit."""
        return None if self.max_total_calls is None else self.max_total_calls + additional

    def turn_limit(self, additional: int = 0) -> int:
        """See `EnvironmentSettings`."""
        return (self.max_turns or _MAX_TURNS.get(self.dialect, _DEFAULT_MAX_TURNS)) + additional

    @property
    def num_system_chars(self) -> int:
        """See `EnvironmentSettings`."""
        return len(self.shown_instructions)

    @property
    def num_result_chars(self) -> float:
        """See `EnvironmentSettings`."""
        if self.search_tag:
            return float(self.search.top_n * self.search.document_chars)
        # Programs print far less than they may.
        return (self.code.max_output_chars or 1_000) / 4

    def digest_parts(self, form: str | None) -> dict[str, Any]:
        """See `EnvironmentSettings`."""
        parts: dict[str, Any] = {"instructions": self.user_text(Task("", "", format=form))}
        tools = self.enabled_tools
        if self.searches_web:
            parts["web"] = WEB_VERSION
        if self.summarizer is not None:
            from treadle.agent.pages.summaries import page_prompts

            parts["pages"] = page_prompts()
        if "visual_inspector" in tools:
            from treadle.environments.planning.tools.visual_inspector import inspector_prompt

            parts["vision"] = inspector_prompt()
        return parts

    def without_source(self) -> Self:
        """See `EnvironmentSettings`; see also `WebSettings.without_source`."""
        if (web := self.search.web) is None:
            return self
        return self.model_copy(update={"search": self.search.model_copy(update={"web": web.without_source()})})

    def digests(self) -> Digests:
        """See `EnvironmentSettings`."""
        return Digests(self.digest(), {name: self.digest(name) for name in FORMATS})
