from __future__ import annotations

from typing import Any

import pytest

from treadle.environments.planning.figures import batches
from treadle.environments.planning.settings import PlanningSettings
from treadle.viewer.plans.chart import ROW_HEIGHT, WIDTH, PlanChart, plan_chart

PLAN = "<plan>T1: a\n- Dependencies: none\nT2: b\n- Dependencies: none\nT3: both\n- Dependencies: T1, T2\n"
PLAN += "T4: c\n- Dependencies: T3</plan>"
TEXTS = [PLAN + "<wiki_search>T1: a | T2: b | T4: c</wiki_search>", "<think>t</think><wiki_search>d</wiki_search>"]
TIMES = [
    {"id": "t0.call_wiki_search_0_0", "started_s": 0.0, "seconds": 2.0},
    {"id": "t0.call_wiki_search_0_1", "started_s": 0.0, "seconds": 1.0},
    {"id": "t0.call_wiki_search_0_2", "started_s": 2.0, "seconds": 1.0},
    {"id": "t1.call_wiki_search_0_0", "started_s": 0.0, "seconds": 1.0},
]


def chart(times: list[dict[str, Any]], status: str = "ok") -> PlanChart:
    segments = [part for text in TEXTS for part in ({"kind": "think", "text": text}, {"kind": "result", "text": "r"})]
    calls = [
        {"id": one["id"], "tool": "wiki_search", "argument": name, "status": status, "turn": int(one["id"][1])}
        for one, name in zip(TIMES, "abcd", strict=True)
    ]
    found = plan_chart(batches(segments, calls, PlanningSettings().turn_dialect), times)
    assert found is not None
    return found


def test_each_call_is_a_bar_where_it_ran() -> None:
    made = chart(TIMES)
    shown = [(bar.task, bar.argument, bar.start, bar.width, bar.seconds) for bar in made.bars if bar.tool]
    assert shown == [
        ("T1", "a", 0.0, 500.0, 2.0),
        ("T2", "b", 0.0, 250.0, 1.0),
        ("T4", "c", 500.0, 250.0, 1.0),
        ("", "d", 750.0, 250.0, 1.0),
    ]
    assert made.times is not None and made.times.wall_s == pytest.approx(4.0) and made.has_times


def test_lines_lead_through_tasks_of_reasoning() -> None:
    made = chart(TIMES)
    places = {bar.task: place for place, bar in enumerate(made.bars)}
    rows = {(round(edge.y1 / ROW_HEIGHT - 0.5), round(edge.y2 / ROW_HEIGHT - 0.5)) for edge in made.edges}
    assert rows == {
        (places["T1"], places["T3"]), (places["T2"], places["T3"]), (places["T3"], places["T4"]),
    }  # fmt: skip


def test_without_times_calls_are_drawn_alike() -> None:
    made = chart([])
    assert not made.has_times and made.times is None
    widths = {bar.width for bar in made.bars if bar.tool}
    assert len(widths) == 1 and all(0 <= bar.start <= WIDTH for bar in made.bars)
    assert plan_chart([], []) is None


def test_calls_that_did_not_run_have_no_bar() -> None:
    assert [bar.width for bar in chart([], status="refused").bars if bar.tool] == [0.0] * 4
