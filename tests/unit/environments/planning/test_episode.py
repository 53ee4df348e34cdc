"""Rollouts of a planning agent: a scripted model, tools with given times on a virtual clock, the real engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from support.servers.own_clock import run as on_virtual_clock

from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import CallRecord, Task
from treadle.agent.model_types import RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import ToolError
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.environments.planning.calls import DUPLICATE
from treadle.environments.planning.entry_calls import read_entry_call
from treadle.environments.planning.episode import LAST_TURN_NOTICE
from treadle.environments.planning.figures import batches, call_times
from treadle.environments.planning.runtime import PlanningRuntime
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.rollouts.rows import row_of, telemetry_of

QUESTION = Task("q", "Who was born first?", dataset="world", domain="qa")
ANSWER = "<think>done</think><answer>X</answer>"


@dataclass
class Search:
    """Tool that takes the given seconds per query, and fails or raises for some."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    raising: set[str] = field(default_factory=set)
    texts: Mapping[str, str] = field(default_factory=dict)
    name: str = "wiki_search"
    asked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0

    async def __aenter__(self) -> Search:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        self.asked.append(argument)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        started = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(self.seconds.get(argument, 1.0))
        finally:
            self.num_running -= 1
        took = asyncio.get_running_loop().time() - started
        if argument in self.raising:
            raise ToolError("out of order")
        self.ended.append(argument)
        if argument in self.failing:
            self.failing.remove(argument)
            return ToolOutcome("error", "it failed", took)
        return ToolOutcome("ok", self.texts.get(argument, f"found {argument}"), took)


class Model:
    """Model that says the given texts, one per turn."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        text = self.texts[min(len(self.requests), len(self.texts) - 1)]
        self.requests.append(request)
        return Completion(text, (), "stop", None, 1, 1, "http://x/v1", 0.0, 0)


class Units(dict[str, bytes]):
    """Cache of one rollout, as bytes that survive a kill."""

    def append(self, unit: str, value: bytes) -> None:
        assert unit not in self, f"{unit} was paid for twice"
        self[unit] = value


async def roll_out(
    texts: Sequence[str], search: Search, *, cache: CallCache | None = None, **keys: Any
) -> tuple[Trajectory, float]:
    settings = PlanningSettings(**keys)
    cache = NullCache() if cache is None else cache
    said = sum(cache.get(f"llm-{turn}") is not None for turn in range(len(texts)))
    engine = RolloutEngine(
        Model(texts[said:]), None, Sampling(), RolloutLimits(max_turns=settings.turn_limit()), settings.turn_dialect
    )
    began = asyncio.get_running_loop().time()
    episode = PlanningRuntime(settings, {"wiki_search": search}).episode()
    made = await engine.roll_out(
        episode, QUESTION, seed=1, deadline=math.inf, cache=NullCache() if cache is None else cache
    )
    return made, asyncio.get_running_loop().time() - began


def played(texts: Sequence[str], search: Search | None = None, **keys: Any) -> tuple[Trajectory, float]:
    return on_virtual_clock(roll_out(texts, search or Search(), **keys))


def results(trajectory: Trajectory) -> list[str]:
    return [segment.text for segment in trajectory.segments if segment.kind == "result"]


def statuses(calls: Sequence[CallRecord]) -> list[tuple[str, str, str]]:
    return [(call.argument, call.status, call.note) for call in calls]


LISTED = (
    "<think>t</think><plan>\nT1: birth year of A\n- Dependencies: none\nT2: birth year of B\n- Dependencies: none\n"
)
LISTED += "T3: compare\n- Dependencies: T1, T2\n</plan>"


@pytest.mark.covers("planning-1")
def test_independent_tasks_are_one_batch() -> None:
    made, seconds = played([LISTED + "<wiki_search>birth year of A | birth year of B</wiki_search>", ANSWER])
    assert statuses(made.calls) == [("birth year of A", "ok", ""), ("birth year of B", "ok", "")]
    assert seconds == pytest.approx(1.0) and made.status == "answered" and made.num_turns == 2


GRAPH = """<plan><graph>
<node id="a">search("director of the film")</node>
<node id="b" depends="">search("capital")</node>
<node id="c" depends="a">search("spouse of {a}")</node>
<node id="d" depends="b, c">compare</node>
</graph></plan>"""


@pytest.mark.covers("planning-4")
@pytest.mark.parametrize("scheduling", ["levels", "dataflow"])
def test_a_plan_in_graph_markup_is_run_as_a_whole(scheduling: str) -> None:
    search = Search(texts={"director of the film": "X. More of it.", "capital": "{a} stays"})
    made, _ = played([f"<think>t</think>{GRAPH}", ANSWER], search, scheduling=scheduling)
    assert search.asked == ["director of the film", "capital", "spouse of X."]
    assert [call.argument for call in made.calls] == ["director of the film", "capital", "spouse of X."]
    assert [call.id for call in made.calls] == [f"t0.call_wiki_search_{place}" for place in (0, 1, 2)]
    assert "[t0.call_wiki_search_2, task c]" in results(made)[2]


TIMED = """<think>t</think><plan><graph><node id="T1">search("1")</node><node id="T2">search("2")</node>
<node id="T3" depends="T1">search("3")</node><node id="T4" depends="T2,T3">search("4")</node></graph></plan>"""


@pytest.mark.covers("planning-5")
@pytest.mark.parametrize(
    ("scheduling", "cap", "expected"), [("levels", 8, 10.0), ("dataflow", 8, 7.0), ("dataflow", 1, 12.0)]
)
def test_a_plan_takes_the_time_of_its_schedule(scheduling: str, cap: int, expected: float) -> None:
    search = Search(seconds={"1": 2.0, "2": 5.0, "3": 4.0, "4": 1.0})
    made, seconds = played([TIMED, ANSWER], search, scheduling=scheduling, max_parallel_calls=cap)
    assert seconds == pytest.approx(expected)
    last = made.calls[-1]
    assert last.started_s + last.seconds == pytest.approx(expected)


@pytest.mark.covers("planning-3")
@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ('<node id="a" depends="b">search("1")</node><node id="b" depends="a">search("2")</node>', ("a", "b")),
        ('<node id="a" depends="z">search("1")</node>', ("a", "z")),
    ],
)
def test_a_bad_plan_is_named_and_the_rollout_continues_with_tags(nodes: str, named: tuple[str, ...]) -> None:
    texts = [f"<think>t</think><plan><graph>{nodes}</graph></plan>", "<wiki_search>1|2</wiki_search>", ANSWER]
    made, _ = played(texts)
    assert all(id in results(made)[0] for id in named)
    assert made.status == "answered" and len(made.calls) == 2


@pytest.mark.covers("planning-6")
def test_a_bar_alone_is_an_error_and_the_rollout_continues() -> None:
    made, _ = played(["<wiki_search>|</wiki_search>", r"<wiki_search>x \| y</wiki_search>", ANSWER])
    assert [(call.id, call.status) for call in made.calls] == [
        ("t0.call_wiki_search_0", "invalid"),
        ("t1.call_wiki_search_0_0", "ok"),
    ]
    assert made.calls[1].argument == "x | y" and made.status == "answered"


@pytest.mark.covers("planning-7")
def test_results_stand_in_the_order_of_the_calls_with_their_names() -> None:
    search = Search(seconds={"a": 2.0, "b": 1.0})
    made, _ = played(["<wiki_search>a|b</wiki_search>", ANSWER], search)
    assert search.ended == ["b", "a"]
    assert [text.strip() for text in results(made)] == [
        f"<observation>\n[t0.call_wiki_search_0_{place}]\nfound {query}\n</observation>"
        for place, query in enumerate("ab")
    ]


@pytest.mark.covers("planning-8")
def test_several_tags_are_one_batch_and_a_tool_that_is_not_there_is_an_error() -> None:
    texts = ["<wiki_search>a</wiki_search>\n<wiki_search>b</wiki_search>\n<code>print(1)</code>", ANSWER]
    made, seconds = played(texts)
    assert [(call.tool, call.status) for call in made.calls] == [
        ("wiki_search", "ok"), ("wiki_search", "ok"), ("code", "invalid"),
    ]  # fmt: skip
    assert seconds == pytest.approx(1.0) and len(results(made)) == 3 and made.status == "answered"


@pytest.mark.covers("planning-9")
def test_queries_beyond_the_cap_wait() -> None:
    search = Search(seconds={str(number): 1.0 + number % 3 for number in range(20)})
    made, _ = played([f"<wiki_search>{'|'.join(map(str, range(20)))}</wiki_search>", ANSWER], search)
    assert search.most_running == 8
    assert [call.argument for call in made.calls] == [str(number) for number in range(20)]


@pytest.mark.covers("planning-10")
def test_a_repeated_query_is_not_sent_unless_it_failed() -> None:
    search = Search(failing=["b"])
    made, _ = played(["<wiki_search>The  A|b</wiki_search>", "<wiki_search>the a | b</wiki_search>", ANSWER], search)
    assert search.asked == ["The  A", "b", "b"]
    assert statuses(made.calls)[2:] == [("the a", "refused", DUPLICATE), ("b", "ok", "")]
    (counts,) = row_of({}, made, "", "")["tools"]
    assert (counts["requested"], counts["executed"], counts["failed"]) == (4, 3, 1)


def test_equal_queries_of_one_turn_are_sent_once() -> None:
    search = Search()
    made, _ = played(["<wiki_search>a|A</wiki_search>", ANSWER], search)
    assert search.asked == ["a"] and [call.note for call in made.calls] == ["", DUPLICATE]


@pytest.mark.covers("planning-11")
def test_a_failed_task_blocks_those_that_depend_on_it() -> None:
    plan = "<plan>T1: a\n- Dependencies: none\nT2: b\n- Dependencies: none\nT3: c\n- Dependencies: T1</plan>"
    search = Search(failing=["a"])
    made, _ = played([f"{plan}<wiki_search>T1: a | T2: b | T3: c</wiki_search>", ANSWER], search)
    assert statuses(made.calls) == [
        ("a", "error", ""), ("b", "ok", ""), ("T3: c", "refused", "blocked by t0.call_wiki_search_0_0"),
    ]  # fmt: skip
    assert search.asked == ["a", "b"] and len(results(made)) == 2


@pytest.mark.covers("planning-12")
def test_the_last_turn_is_for_the_answer() -> None:
    made, _ = played(["<wiki_search>a</wiki_search>", "<wiki_search>b</wiki_search>", "<wiki_search>c</wiki_search>"],
                     max_turns=3)  # fmt: skip
    assert made.status == "max_turns" and [call.argument for call in made.calls] == ["a", "b"]
    assert [LAST_TURN_NOTICE in text for text in results(made)] == [False, False, True]


@pytest.mark.covers("planning-13")
def test_a_tool_that_raises_leaves_the_other_rollouts_alone() -> None:
    async def batch() -> list[Any]:
        made = [roll_out([f"<wiki_search>{name}</wiki_search>", ANSWER], Search(raising={"c"})) for name in "abcd"]
        return await asyncio.gather(*made, return_exceptions=True)

    ended = on_virtual_clock(batch())
    assert [isinstance(one, ToolError) for one in ended] == [False, False, True, False]


def test_calls_beside_a_failed_tool_are_kept_and_not_run_again() -> None:
    units, first, second = Units(), Search(raising={"b"}), Search()
    texts = ["<wiki_search>a|b|c</wiki_search>", ANSWER]
    with pytest.raises(ToolError):
        played(texts, first, cache=units)
    assert first.ended == ["a", "c"]
    made, _ = played(texts, second, cache=units)
    assert second.asked == ["b"]
    undisturbed, _ = played(texts)
    row, expected = (row_of({}, one, "", "") for one in (made, undisturbed))
    assert row == expected


def test_a_resumed_rollout_knows_its_searches_and_its_plan() -> None:
    texts = [LISTED + "<wiki_search>T1: a</wiki_search>", "<wiki_search>a | T3: about {T1}</wiki_search>", ANSWER]
    units = Units()
    undisturbed, _ = played(texts, cache=units)
    kept = {name: value for name, value in units.items() if "1" not in name or name.startswith("llm")}
    search = Search()
    again, _ = played(texts, search, cache=Units(kept))
    assert search.asked == ["about found a"]
    assert row_of({}, again, "", "") == row_of({}, undisturbed, "", "")


def test_own_tools_are_called_with_json() -> None:
    schema = ToolSchema("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    assert read_entry_call('{"a": 1}', [schema]) == ("add", {"a": 1})
    assert read_entry_call('{"name": "add", "arguments": {"a": 2}}', [schema, schema]) == ("add", {"a": 2})
    for text in ('{"a": "x"}', "[1]", '{"name": "sub", "arguments": {}}', "\ud800"):
        with pytest.raises(ValueError, match=r"\w"):
            read_entry_call(text, [schema])


def test_the_question_stands_behind_the_instructions() -> None:
    (message,) = PlanningSettings().first_messages(QUESTION) or []
    assert message["role"] == "user" and message["content"].endswith("\n\nQuestion: Who was born first?")
    (own,) = PlanningSettings(dialect="code", instructions="Do it.").first_messages(QUESTION) or []
    assert own["content"] == "Do it.\n\nTask: Who was born first?"


def test_the_stored_calls_have_ids_and_no_times() -> None:
    made, _ = played(["<wiki_search>a|b</wiki_search>", ANSWER])
    calls = orjson.loads(row_of({}, made, "", "")["tool_calls"])
    assert [call["id"] for call in calls] == ["t0.call_wiki_search_0_0", "t0.call_wiki_search_0_1"]
    assert not any("seconds" in call or "started_s" in call for call in calls)


def test_the_figures_of_a_rollout_are_parts_of_its_outcome() -> None:
    texts = [
        LISTED + "<wiki_search>birth year of A | birth year of B</wiki_search>",
        "<think>again</think><wiki_search>birth year of a | something else</wiki_search>",
        ANSWER,
    ]
    made, _ = played(texts)
    assert made.outcome is not None and made.outcome.reward is None and made.outcome.success is None
    assert made.outcome.parts == {
        "steps": 2, "batch_width": 1.5, "max_batch_width": 2, "duplicate_calls": 1, "blocked_calls": 0, "plans": 1,
        "faults": 0, "bad_plans": 0, "plan_tasks": 3, "plan_levels": 2, "early_calls": 0, "tasks_not_run": 0,
        "calls_outside_plan": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("scheduling", "early"), [("tags", 1.0), ("levels", 0.0)])
def test_a_call_beside_the_task_that_it_needs_is_early_without_a_schedule(scheduling: str, early: float) -> None:
    plan = "<plan>T1: a\n- Dependencies: none\nT2: b\n- Dependencies: T1</plan>"
    made, _ = played([f"{plan}<wiki_search>T1: a | T2: b</wiki_search>", ANSWER], scheduling=scheduling)
    assert made.outcome is not None and made.outcome.parts["early_calls"] == early


@pytest.mark.parametrize(("scheduling", "chain"), [("levels", 7.0), ("dataflow", 7.0), ("tags", 7.0)])
def test_the_critical_path_is_that_of_the_plan(scheduling: str, chain: float) -> None:
    plan = "<plan>T1: a\n- Dependencies: none\nT2: b\n- Dependencies: none\nT3: c\n- Dependencies: T1\n"
    plan += "T4: d\n- Dependencies: T2, T3</plan>"
    search = Search(seconds={"1": 2.0, "2": 5.0, "3": 4.0, "4": 1.0})
    made, took = played(
        [f"{plan}<wiki_search>T1: 1 | T2: 2 | T3: 3 | T4: 4</wiki_search>", ANSWER], search, scheduling=scheduling
    )
    telemetry = telemetry_of("k", 1, took, made)
    row = row_of({}, made, "", "")
    found = batches(orjson.loads(row["segments"]), orjson.loads(row["tool_calls"]), PlanningSettings().turn_dialect)
    times = call_times(found, telemetry["call_times"])
    assert (times.sequential_s, times.batch_s, times.critical_path_s) == pytest.approx((12.0, 5.0, chain))
    assert times.wall_s == pytest.approx(took) and times.speed_up == pytest.approx(2.4)
