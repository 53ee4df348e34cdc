from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.environments.planning.graph import PlanNode, checked_plan, find_cycle, parse_template
from treadle.environments.planning.plan_text import parse_plan, task_id

LISTED = """
T1: birth year of the director of film A
- Dependencies: none
T2: birth year of the director of film B
- Dependencies: none
T3: compare
- Dependencies: T1, T2
"""


def _graph(*nodes: str) -> str:
    return "<graph>\n" + "\n".join(nodes) + "\n</graph>"


@pytest.mark.covers("planning-1")
def test_list_of_tasks_has_levels() -> None:
    plan = parse_plan(LISTED)
    assert plan.is_valid
    assert plan.levels() == [["T1", "T2"], ["T3"]]
    assert [node.tool for node in plan.nodes] == [None, None, None]
    assert plan.nodes[0].description == "birth year of the director of film A"


@pytest.mark.covers("planning-2")
def test_graph_markup_has_levels() -> None:
    plan = parse_plan(
        _graph(
            '<node id="a">search("x")</node>',
            "<node id='b'>search('y')</node>",
            '<node id="c" depends="a">search("{a}")</node>',
            '<node id="d" depends="b, c">compare both</node>',
        ),
        ["search"],
    )
    assert plan.is_valid
    assert plan.levels() == [["a", "b"], ["c"], ["d"]]
    assert [node.tool for node in plan.nodes] == ["search", "search", "search", None]


@pytest.mark.covers("planning-2")
@pytest.mark.parametrize("spelled", ["Task 2", "T2", "t2", " task-2 ", "**T2**", "T02", "Task #2", "[T2]"])
def test_ids_are_normalized(spelled: str) -> None:
    assert task_id(spelled) == "T2"
    plan = parse_plan(f"Task 1: a\n- Dependencies: none\nT2: b\n- Dependencies: -\nT3: c\n- Dependencies: {spelled}")
    assert plan.levels() == [["T1", "T2"], ["T3"]]


@pytest.mark.parametrize(
    "line",
    [
        "- Dependencies: T1, T2",
        "* Depends on: Task 1 and Task 2",
        "dependencies: [T1, T2]",
        "**Dependencies:** T1; T2.",
    ],
)
def test_dependencies_are_read_in_many_spellings(line: str) -> None:
    plan = parse_plan(f"**T1:** a\n- Dependencies: None.\n\n2. T2: b\n- dependencies: n/a\n### Task 3: c\n{line}\n")
    assert plan.is_valid, plan.problems
    assert plan.nodes[2].depends_on == ("T1", "T2")


@pytest.mark.covers("planning-3")
def test_cycle_names_its_tasks() -> None:
    plan = parse_plan(
        _graph('<node id="a" depends="b">search("x")</node>', '<node id="b" depends="a">search("y")</node>'), ["search"]
    )
    (problem,) = plan.problems
    assert (problem.code, set(problem.ids)) == ("cycle", {"a", "b"})
    assert "a" in problem.text
    assert "b" in problem.text
    with pytest.raises(ValueError, match="cycle"):
        plan.levels()


def _faults(text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(problem.code, problem.ids) for problem in parse_plan(text, ["search"]).problems]


@pytest.mark.covers("planning-3", "planning-4")
def test_problems_are_named() -> None:
    assert _faults("") == [("empty_plan", ())]
    assert _faults("First I search, then I answer.") == [("empty_plan", ())]
    assert _faults('<node id="a" depends="z">search("x")</node>') == [("unknown_dependency", ("a", "z"))]
    assert _faults('<node id="a" depends="a">search("x")</node>') == [("self_dependency", ("a",))]
    assert _faults('<node id="a">fly("x")</node>') == [("unknown_tool", ("a",))]
    assert _faults('<node id="a">search(x)</node>')[0] == ("unreadable", ("a",))
    assert _faults('<node id="a">search("x")') == [("unreadable", ("a",)), ("empty_plan", ())]
    assert _faults('<node>search("x")</node>')[0] == ("unreadable", ())
    assert _faults("T1: a\nT1: b") == [("duplicate_id", ("T1",))]
    assert _faults("".join(f"T{number}: a\n" for number in range(1, 34)))[0] == ("too_many_nodes", ())
    misplaced = _graph('<node id="d">search("x")</node>', '<node id="c">search("{d}")</node>')
    assert _faults(misplaced) == [("placeholder_not_ancestor", ("c", "d"))]


@pytest.mark.covers("planning-4")
def test_results_fill_places_once() -> None:
    text = _graph(
        '<node id="a">search("x")</node>', '<node id="c" depends="a">search("spouse of {a}, {{not}} {a}")</node>'
    )
    argument = parse_plan(text, ["search"]).by_id["c"].argument
    assert argument.filled({"a": "X"}) == "spouse of X, {not} X"
    assert argument.filled({"a": "{b} {a}"}) == "spouse of {b} {a}, {not} {b} {a}"


def test_quoted_arguments_keep_what_they_contain() -> None:
    plan = parse_plan(
        r"""<node id="a">search(query="He said \"no\", (twice)\nthen")</node><node id="b">search('a "b" c')</node>""",
        ["search"],
    )
    assert plan.is_valid, plan.problems
    assert plan.by_id["a"].argument.filled({}) == 'He said "no", (twice)\nthen'
    assert plan.by_id["b"].argument.filled({}) == 'a "b" c'


def test_ancestors_are_transitive() -> None:
    plan = parse_plan("T1: a\nT2: b\n- Dependencies: T1\nT3: c\n- Dependencies: T2")
    assert plan.ancestors() == {"T1": set(), "T2": {"T1"}, "T3": {"T1", "T2"}}


edges = st.integers(1, 8).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, size - 1), unique=True, max_size=3), min_size=size, max_size=size)
)


@given(edges)
def test_either_levels_or_a_real_cycle(needed: list[list[int]]) -> None:
    nodes = [PlanNode(f"T{i}", "", tuple(f"T{other}" for other in needed[i] if other != i)) for i in range(len(needed))]
    plan = checked_plan(nodes)
    if plan.is_valid:
        level = {id: number for number, ids in enumerate(plan.levels()) for id in ids}
        assert level.keys() == {node.id for node in nodes}
        for node in nodes:
            assert level[node.id] == 1 + max((level[other] for other in node.depends_on), default=-1)
    else:
        cycle = find_cycle(nodes)
        for id, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert other in plan.by_id[id].depends_on


@given(st.text(alphabet=st.sampled_from(list('ab{}T1:-,<>/nodegraph id="()\\\n '))))
def test_any_text_is_read(text: str) -> None:
    plan = parse_plan(text, ["a"])
    assert plan.is_valid == (not plan.problems)


@given(st.text(alphabet=st.sampled_from(list("ab{}"))), st.text())
def test_templates_keep_all_other_text(text: str, result: str) -> None:
    template = parse_template(text)
    filled = template.filled(dict.fromkeys(template.places, result))
    assert template.literals[0] == filled[: len(template.literals[0])]
    if "{" not in text and "}" not in text:
        assert filled == text


def test_hostile_plans_take_linear_time() -> None:
    for text in ("<node id='a'>" * 50_000, "<node " * 50_000, "{a" * 100_000, 'search("' * 50_000, "T1: " * 50_000):
        assert not parse_plan(text).is_valid or parse_plan(text).nodes
