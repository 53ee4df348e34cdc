"""Read and write turns of planning agents: thoughts, plans, several calls side by side, observations.

One table per dialect. `mhqa`, `web`, `code` and `all` are the agents of arXiv 2508.13167, `gap` that of arXiv
2510.25320, `search-r1` the minimal protocol that these papers compare with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, get_args

from treadle.agent.contract import Call, Message, ModelTurn, TurnEnd
from treadle.agent.dialects.base import RESULT, TEXT, Segment
from treadle.agent.dialects.tag_table import Tag
from treadle.agent.dialects.tags import TagDialect, neutralise
from treadle.environments.planning.batch import TagMatch, end_of_batch, find_tags, read_calls
from treadle.environments.planning.graph import MAX_NODES, Plan
from treadle.environments.planning.plan_text import parse_plan
from treadle.environments.planning.planned import PlannedCall, plan_calls, planned_calls
from treadle.environments.planning.violations import violations

DialectName = Literal["mhqa", "gap", "web", "code", "all", "search-r1"]
DIALECTS: tuple[DialectName, ...] = get_args(DialectName)
PLAN = "plan"

_CALL = {
    "wiki_search": Tag("wiki_search", is_tool=True, parameter="query"),
    "web_search": Tag("web_search", is_tool=True, parameter="query"),
    "search": Tag("search", is_tool=True, parameter="query"),
    "crawl_page": Tag("crawl_page", is_tool=True, parameter="urls"),
    "code": Tag("code", is_tool=True, parameter="code"),
    "visual_inspector": Tag("visual_inspector", is_tool=True, parameter="request"),
}
SPLITTING = ("wiki_search", "search")
"""Tags whose text may be several queries joined by a bar."""
_TOOLS: Mapping[DialectName, tuple[str, ...]] = {
    "mhqa": ("wiki_search",),
    "gap": ("wiki_search",),
    "web": ("web_search", "crawl_page"),
    "code": ("code",),
    "all": ("web_search", "crawl_page", "code", "visual_inspector"),
    "search-r1": ("search",),
}
_THOUGHTS: Mapping[DialectName, tuple[str, ...]] = {
    "mhqa": ("think", PLAN, "reflection"),
    "gap": ("think", PLAN, "reflection"),
    "web": ("think", PLAN, "reflection", "suggested_answer", "double_check"),
    "code": ("think", PLAN, "reflection"),
    "all": ("think", PLAN, "reflection", "suggested_answer", "double_check"),
    "search-r1": ("think",),
}


def tools_of(dialect: DialectName) -> tuple[str, ...]:
    """Return the tags that call a tool, in the order of the prompt."""
    return _TOOLS[dialect]


def _successors(name: DialectName, tools: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return kind of block -> kinds that may follow it; an empty kind means the start of the text.

    Thoughts and results are left out: a thought precedes each block, and a call includes its result.
    """
    tools = tuple(tools)
    if name in ("web", "all"):
        return {
            "": (PLAN, *tools, "answer"),
            PLAN: (*tools, "suggested_answer"),
            **dict.fromkeys(tools, (*tools, "reflection", "suggested_answer")),
            "reflection": (PLAN, *tools, "suggested_answer"),
            "suggested_answer": ("double_check",),
            "double_check": (PLAN, *tools, "answer"),
        }
    if name == "code":
        return {
            "": (PLAN,),
            PLAN: (*tools, "answer"),
            **dict.fromkeys(tools, ("reflection", "answer", *tools)),
            "reflection": (*tools, "answer"),
        }
    if name == "search-r1":
        return {"": (*tools, "answer"), **dict.fromkeys(tools, (*tools, "answer"))}
    free = (PLAN, *tools, "reflection", "answer")
    return {"": free, PLAN: free, **dict.fromkeys(tools, free), "reflection": (PLAN, *tools, "answer")}


@dataclass(frozen=True)
class PlanningDialect(TagDialect):
    """Dialect with plans and calls side by side; see `treadle.agent.dialects.base.Dialect`.

    Attributes:
        splitting: Tags whose text may be several queries joined by a bar.
        several: Whether a turn may have several tags with calls. Generation then stops at the marker of a result, and
            text behind the tags is dropped; otherwise it stops at the first closing marker of a call.
        runs_plans: Whether a plan in graph markup is run as a whole, without calls by tags.
        plan_tools: Name of a tool in a plan -> tag that calls it.
        max_nodes: Largest number of tasks of a plan.
    """

    splitting: tuple[str, ...] = ()
    several: bool = True
    runs_plans: bool = False
    plan_tools: Mapping[str, str] = field(default_factory=dict)
    max_nodes: int = MAX_NODES

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """Strings at which generation stops: the end of an answer, and the start of a result or the end of a call."""
        calls = [self.by_name[RESULT].opening] if self.several else [self.by_name[name].closing for name in self.tools]
        return (self.by_name[self.answer].closing, *calls)

    def cut(self, text: str) -> str:
        """See `Dialect`. White space between calls and the marker of a result stays, since it is sampled."""
        opening = self.by_name[RESULT].opening
        result = text.find(opening)
        end = self._end(text if result < 0 else text[:result])
        if result >= 0 and (end is None or not text[end:result].strip()):
            return text[:result]
        return text if end is None or not text[end:].strip() else text[:end]

    def is_stopped(self, text: str) -> bool:
        """See `Dialect`."""
        return self._end(text) is not None

    def _end(self, text: str) -> int | None:
        """Return the first place where an answer, a batch of calls or a plan run as a whole ends; None without any."""
        ends = []
        if (answer := text.find(self.by_name[self.answer].closing)) >= 0:
            ends.append(answer + len(self.by_name[self.answer].closing))
        if self.several:
            ends.append(end_of_batch(text, self.tools, self._away))
        else:
            ends += [tag.end for tag in find_tags(text, self.tools)[:1]]
        if self.run_plan(text) is not None and (found := self.find_plan(text)) is not None:
            ends.append(found[1])
        return min(filter(None, ends), default=None)

    def open_marker(self, text: str) -> str:
        """See `Dialect`."""
        pieces = self.segments(text)
        kind = pieces[-1].kind if pieces else ""
        closes = kind == self.answer or (not self.several and kind in self.tools)
        return self.by_name[kind].closing if closes else ""

    def find_plan(self, text: str) -> tuple[Plan, int] | None:
        """Return the last plan of a text and its end; None without one."""
        if PLAN not in self.by_name:
            return None
        plans = find_tags(text, [PLAN])
        return (self.parse_plan(plans[-1].body), plans[-1].end) if plans else None

    def parse_plan(self, body: str) -> Plan:
        """Read the text of a plan, in either syntax."""
        return _parsed(body, tuple(self.plan_tools), self.max_nodes)

    def read(self, text: str, number: int, ended: TurnEnd, *, is_empty: bool = False) -> ModelTurn:
        """See `Dialect`. A turn that ends with an answer has no calls.

        A turn without tags has the calls of its plan if the plan is run as a whole. Calls keep the labels of their
        tasks and the placeholders in their texts, since their plan may be in an earlier turn.
        """
        calls: tuple[Call, ...] = ()
        if not text.rstrip().endswith(self.by_name[self.answer].closing):
            calls = read_calls(
                text,
                number,
                self._parameters,
                self.splitting,
                several=self.several,
                unavailable=self._unavailable(text),
            )
            if not calls and (plan := self.run_plan(text)) is not None:
                calls = tuple(one.call for one in plan_calls(plan, number, self.plan_tools, self._parameters))
        return ModelTurn(text, number, ended, is_empty, calls)

    @cached_property
    def _parameters(self) -> dict[str, str]:
        return {name: self.by_name[name].parameter for name in self.tools}

    @cached_property
    def _away(self) -> tuple[str, ...]:
        """Tags that call tools in other planning dialects, but not in this one."""
        return tuple(word for word in _CALL if word not in self.by_name)

    def _unavailable(self, text: str) -> list[TagMatch]:
        """Return the tags of a text that call tools in `_away`; inside thoughts such tags are plain text."""
        if not any(f"</{word}>" in text for word in self._away):
            return []
        found = []
        for piece in self.segments(text):
            if piece.kind == TEXT:
                found += [
                    replace(tag, start=tag.start + piece.start, end=tag.end + piece.start)
                    for tag in find_tags(piece.text, self._away)
                ]
        return found

    def planned(self, turn: ModelTurn, plan: Plan | None, done: Collection[str] = ()) -> tuple[PlannedCall, ...]:
        """Return the calls of a turn with their tasks; `plan` is the latest plan, `done` its tasks with results."""
        own = self.run_plan(turn.text)
        if own is not None and not find_tags(turn.text, self.tools):
            return plan_calls(own, turn.number, self.plan_tools, self._parameters)
        return planned_calls(turn.calls, plan, done)

    def run_plan(self, text: str) -> Plan | None:
        """Return the plan of a turn if it is run as a whole, else None."""
        found = self.find_plan(text) if self.runs_plans else None
        return found[0] if found is not None and found[0].is_run else None

    def has_answer(self, turn: ModelTurn) -> bool:
        """See `Dialect`."""
        return turn.text.rstrip().endswith(self.by_name[self.answer].closing)

    def result(self, text: str, call: str = "") -> Message:
        """See `Dialect`. The first line names the call, so that results need no order."""
        tag = self.by_name[RESULT]
        inner = neutralise(f"[{call}]\n{text}" if call else text, self)
        return Message(f"\n{tag.opening}\n{inner}\n{tag.closing}\n\n", "block")

    def is_acted_on(self, segment: Segment) -> bool:
        """See `Dialect`."""
        return segment.kind == self.answer and segment.text.endswith(self.by_name[self.answer].closing)

    def faults(self, segments: Sequence[Segment], calls: Sequence[tuple[str, str]]) -> list[str]:
        """See `Dialect`; the codes are those of `treadle.environments.planning.violations`."""
        return violations(segments, self)

    def as_json(self) -> dict[str, object]:
        """See `Dialect`."""
        return {
            **super().as_json(),
            "splitting": list(self.splitting),
            "several": self.several,
            "runs_plans": self.runs_plans,
            "plan_tools": dict(self.plan_tools),
            "max_nodes": self.max_nodes,
        }


@lru_cache(maxsize=16)
def _parsed(body: str, tools: tuple[str, ...], max_nodes: int) -> Plan:
    """Read a plan; the cache helps because the same plan is read several times per turn."""
    return parse_plan(body, tools, max_nodes=max_nodes)


def planning_dialect(
    name: DialectName,
    tools: Sequence[str],
    *,
    several: bool = True,
    runs_plans: bool = False,
    max_nodes: int = MAX_NODES,
) -> PlanningDialect:
    """Return a dialect in which only these tags call tools; the text of other tags is plain text."""
    active = [tag for tag in tools_of(name) if tag in tools]
    others = [tag for tag in tools if tag not in active]
    tags = (
        *(Tag(thought) for thought in _THOUGHTS[name]),
        *(_CALL[tag] for tag in active),
        *(Tag(tag, is_tool=True, parameter="arguments") for tag in others),
        Tag(RESULT, author="system", word="information" if name == "search-r1" else "observation"),
        Tag("answer", stop=True),
    )
    names = {tag: tag for tag in tools} | ({"search": active[0]} if active and "search" not in tools else {})
    return PlanningDialect(
        tags=tags,
        successors=_successors(name, [*active, *others]),
        splitting=tuple(tag for tag in active if tag in SPLITTING),
        several=several,
        runs_plans=runs_plans,
        plan_tools=names,
        max_nodes=max_nodes,
    )
