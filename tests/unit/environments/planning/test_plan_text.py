"""Plans as models write them, in any spelling, and texts that are none: each is read once, and nothing is raised."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.sweep import examples

from treadle.environments.planning.graph import PlanNode, Template
from treadle.environments.planning.plan_text import parse_plan, task_id

_WORDS = st.text(alphabet="abcXYZ 123?,.:;()é日-'", max_size=25).map(str.strip)
_ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n"])


@st.composite
def numbered(draw: st.DrawFn) -> list[tuple[int, str, list[int]]]:
    """Draw tasks with number, description and what they need, without cycles."""
    numbers = draw(st.lists(st.integers(1, 120), min_size=1, max_size=8, unique=True))
    return [
        (number, draw(_WORDS), draw(st.lists(st.sampled_from(numbers[:place]), unique=True)) if place else [])
        for place, number in enumerate(numbers)
    ]


def spelled(draw: st.DrawFn, number: int) -> str:
    return draw(st.sampled_from(["T{}", "t{}", "Task {}", "task-{}", "TASK #{}", "T0{}", "Task{}"])).format(number)


@given(numbered(), st.data())
@settings(max_examples=examples(200))
def test_lists_are_read_in_any_spelling(tasks: list[tuple[int, str, list[int]]], data: st.DataObject) -> None:
    draw = data.draw
    text = draw(st.sampled_from(["", "Here is my plan.\n", "\n\n"]))
    for number, words, needed in tasks:
        mark = draw(st.sampled_from(["", "- ", "* ", "### ", "1. ", "2) ", "  "]))
        bold = draw(st.sampled_from(["", "**", "__", "`"]))
        stop = draw(st.sampled_from([":", " :", ")", "."]))
        text += f"{mark}{bold}{spelled(draw, number)}{bold}{stop} {words}{draw(_ENDS)}"
        ids = draw(st.sampled_from([", ", " and ", "; ", " & ", ","])).join(spelled(draw, one) for one in needed)
        if not needed:
            ids = draw(st.sampled_from(["none", "None.", "N/A", "-", "[]", "nothing", ""]))
        label = draw(st.sampled_from(["Dependencies", "dependencies", "Depends on", "**Dependencies**", "Deps"]))
        text += f"{draw(st.sampled_from(['- ', '  - ', '* ', '']))}{label}: {ids}{draw(_ENDS)}"
    plan = parse_plan(text)
    assert plan.is_valid, plan.problems
    assert plan.nodes == tuple(
        PlanNode(f"T{number}", words, tuple(f"T{one}" for one in needed)) for number, words, needed in tasks
    )


@given(numbered(), st.data())
@settings(max_examples=examples(200))
def test_graph_markup_is_read_in_any_spelling(tasks: list[tuple[int, str, list[int]]], data: st.DataObject) -> None:
    draw = data.draw
    text, expected = draw(st.sampled_from(["", "<graph>", "<GRAPH id='g'>\n", "My plan:\n<graph>\n"])), []
    for number, words, needed in tasks:
        quote = draw(st.sampled_from("\"'"))
        listed = draw(st.sampled_from([",", ", ", " , "])).join(spelled(draw, one) for one in needed)
        depends = f" depends{draw(st.sampled_from(['=', ' = ']))}{quote}{listed}{quote}" if needed else ""
        identity = f" id={quote}{spelled(draw, number)}{quote}"
        attributes = draw(st.sampled_from([identity + depends, depends + identity]))
        called = draw(st.booleans())
        literals = [
            words + draw(st.sampled_from(["", "|", "\\", '"', "'", "\n", "[x]"])) for _ in range(len(needed) + 1)
        ]
        own = [f"T{one}" for one in needed]
        body = literals[0] + "".join(f"{{{place}}}{more}" for place, more in zip(own, literals[1:], strict=True))
        if called:
            escaped = body.replace("\\", "\\\\").replace(quote, f"\\{quote}")
            written = f"search({draw(st.sampled_from(['', 'query=', ' ']))}{quote}{escaped}{quote})"
        else:
            written = "say " + body.rstrip(")")
        text += f"<node{attributes}>{draw(_SPACE)}{written}{draw(_SPACE)}</node>{draw(_SPACE)}"
        argument = Template(tuple(literals), tuple(own)) if called else Template(("",))
        expected.append(PlanNode(f"T{number}", written.strip(), tuple(own), "search" if called else None, argument))
    plan = parse_plan(text + draw(st.sampled_from(["", "</graph>"])), ["search"])
    assert plan.is_valid, plan.problems
    assert plan.nodes == tuple(expected)


_SPACE = st.sampled_from(["", " ", "\n", "\r\n  "])
_PIECES = [
    *("<graph>", "</graph>", "<node", "<node ", "<NODE id='a'", ">", "/>", "</node>", ' id="', ' depends="', "'", '"'),
    *(
        "search(",
        'search("',
        ")",
        "{",
        "}",
        "{{",
        "{T1}",
        "\\",
        "T1",
        "T1: ",
        "Task 2",
        "- Dependencies: ",
        "none",
        ",",
    ),
    *(
        " and ",
        "&",
        "*",
        "#",
        "1.",
        "\n",
        "\r\n",
        "\u2028",
        "\x85",
        "\x00",
        "\ud800",
        "é",
        "²",
        "١",
        "T١: ",
        "9" * 5000,
    ),
]


@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=4)), max_size=25).map("".join))
@example("T" + "9" * 5000 + ": x")
@example("T1: x\n- Dependencies: T" + "9" * 5000)
@example('<node id="T' + "9" * 5000 + '">x</node>')
@settings(max_examples=examples(400))
def test_nothing_is_raised(text: str) -> None:
    plan = parse_plan(text, ["search"])
    assert plan.is_valid == (not plan.problems)
    assert len({node.id for node in plan.nodes}) == len(plan.nodes) or not plan.is_valid
    if plan.is_valid:
        assert sorted(sum(plan.levels(), [])) == sorted(node.id for node in plan.nodes)


@given(st.text())
def test_a_normalized_id_stays(text: str) -> None:
    assert task_id(task_id(text)) == task_id(text)


@pytest.mark.parametrize(
    ("start", "unit", "end"),
    [
        ("<node ", "x", "'>"),
        ("<node id='a' ", "a-", ">x</node>"),
        ("<node ", "a = ", ">"),
        ("", "<node ", ""),
        ("<node id='a'>", "</node ", ""),
        ("<node id='a'>search(\"", '\\"', ""),
        ("<node id='a'>search(\"", "{a", '")</node>'),
        ("", "*", "x"),
        ("Task ", " \t", "x"),
        ("T1: x\n- Dependencies: T2", "  ", "x"),
        ("T1: x\n- Dependencies: ", " and ", "x"),
        ("T", "9", ": x"),
    ],
)
def test_long_texts_take_time_in_proportion(start: str, unit: str, end: str) -> None:
    """Eight times the text takes about eight times as long; a pattern that goes back would take 64 times."""

    def cpu_s(size: int) -> float:
        text = start + unit * (size // len(unit)) + end
        took = []
        for _ in range(3):
            began = time.thread_time()
            parse_plan(text, ["search"])
            took.append(time.thread_time() - began)
        return min(took)

    assert cpu_s(24_000) <= 30 * max(cpu_s(3_000), 0.0005)


def test_new_dependencies_in_each_line_take_linear_work() -> None:
    lines = [f"- Dependencies: {'x' * 20}{number}" for number in range(5_000)]
    (node,) = parse_plan("T1: a\n" + "\n".join(lines)).nodes
    assert len(node.depends_on) == 5_000
