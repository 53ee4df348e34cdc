"""Hold a plan as a graph of tasks: their dependencies and levels, and the problems of the plan.

Papers: arXiv 2510.25320, section 3 (graph-based planning).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

MAX_NODES = 32
"""Largest number of tasks of a plan by default."""

PlanFault = Literal[
    "empty_plan",
    "too_many_nodes",
    "unreadable",
    "duplicate_id",
    "unknown_dependency",
    "self_dependency",
    "cycle",
    "unknown_tool",
    "placeholder_not_ancestor",
]
"""Code of something that is wrong with a plan."""


@dataclass(frozen=True, slots=True)
class PlanProblem:
    """Something that is wrong with a plan.

    Attributes:
        code: Kind of problem.
        text: One sentence that names the tasks.
        ids: Ids of tasks that it concerns; for `cycle` the tasks on the cycle, in the order of their dependencies.
    """

    code: PlanFault
    text: str
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """Argument of a call with placeholders for the results of other tasks.

    Attributes:
        literals: Texts around the placeholders; one more than there are placeholders.
        places: Id of the task whose result fills each placeholder, in order.
    """

    literals: tuple[str, ...]
    places: tuple[str, ...] = ()

    def filled(self, results: Mapping[str, str]) -> str:
        """Return the text with results in place of the placeholders. Braces inside a result stay text."""
        parts = [self.literals[0]]
        for place, literal in zip(self.places, self.literals[1:], strict=True):
            parts += [results[place], literal]
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One task of a plan.

    Attributes:
        id: Normalized id, such as `T1`.
        description: What to do, as the model wrote it.
        depends_on: Ids of the tasks whose results it needs, in the order written, without repetition.
        tool: Tool that it calls; None for a task of reasoning alone, which makes no call.
        argument: Argument of the call.
    """

    id: str
    description: str
    depends_on: tuple[str, ...] = ()
    tool: str | None = None
    argument: Template = Template(("",))


@dataclass(frozen=True)
class Plan:
    """Tasks in the order in which the model wrote them, and what is wrong with them.

    Only a plan without problems has levels and can be scheduled.
    """

    nodes: tuple[PlanNode, ...]
    problems: tuple[PlanProblem, ...] = ()
    by_id: Mapping[str, PlanNode] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {node.id: node for node in reversed(self.nodes)})

    @property
    def is_valid(self) -> bool:
        """Whether nothing is wrong with the plan."""
        return not self.problems

    @property
    def is_run(self) -> bool:
        """Whether the plan can be run as a whole: nothing is wrong with it, and it has calls."""
        return self.is_valid and any(node.tool is not None for node in self.nodes)

    def levels(self) -> list[list[str]]:
        """Return the ids by level: a task is one level above the highest task that it depends on.

        Raises ValueError if the plan has problems.
        """
        if self.problems:
            raise ValueError(self.problems[0].text)
        level_of: dict[str, int] = {}
        for id in ordered(self.nodes):
            level_of[id] = 1 + max((level_of[other] for other in self.by_id[id].depends_on), default=-1)
        levels: list[list[str]] = [[] for _ in range(1 + max(level_of.values(), default=-1))]
        for node in self.nodes:
            levels[level_of[node.id]].append(node.id)
        return levels

    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """Return the ids of all tasks that each task needs, directly or not.

        Raises ValueError if the plan has problems.
        """
        if self.problems:
            raise ValueError(self.problems[0].text)
        return self._ancestors

    @cached_property
    def _ancestors(self) -> dict[str, frozenset[str]]:
        return _ancestors(self.nodes, ordered(self.nodes))


def checked_plan(
    nodes: Sequence[PlanNode],
    *,
    tools: Collection[str] = (),
    max_nodes: int = MAX_NODES,
    problems: Iterable[PlanProblem] = (),
) -> Plan:
    """Return a plan of these tasks with its problems: first `problems`, found in its text, then those of the tasks.

    `tools` are the names that calls may have. Takes linear time in tasks and dependencies, apart from placeholders.
    """
    found = [*problems]
    if not nodes:
        return Plan((), (*found, PlanProblem("empty_plan", "the plan has no tasks")))
    if len(nodes) > max_nodes:
        text = f"the plan has {len(nodes)} tasks; at most {max_nodes} are allowed"
        return Plan(tuple(nodes), (*found, PlanProblem("too_many_nodes", text)))
    found += _duplicates(nodes)
    found += _bad_dependencies(nodes)
    found += _unknown_tools(nodes, tools)
    if not found:
        order = ordered(nodes)
        if len(order) < len(nodes):
            cycle = find_cycle(nodes)
            text = f"the tasks {', '.join(cycle)} depend on each other in a cycle"
            found.append(PlanProblem("cycle", text, tuple(cycle)))
        else:
            found += _bad_places(nodes, order)
    return Plan(tuple(nodes), tuple(found))


def _duplicates(nodes: Sequence[PlanNode]) -> list[PlanProblem]:
    counts = Counter(node.id for node in nodes)
    return [PlanProblem("duplicate_id", f"two tasks are called {id}", (id,)) for id in counts if counts[id] > 1]


def _bad_dependencies(nodes: Sequence[PlanNode]) -> list[PlanProblem]:
    known = {node.id for node in nodes}
    found = []
    for node in nodes:
        for other in node.depends_on:
            if other == node.id:
                found.append(PlanProblem("self_dependency", f"task {node.id} depends on itself", (node.id,)))
            elif other not in known:
                text = f"task {node.id} depends on {other}, which the plan does not have"
                found.append(PlanProblem("unknown_dependency", text, (node.id, other)))
    return found


def _unknown_tools(nodes: Sequence[PlanNode], tools: Collection[str]) -> list[PlanProblem]:
    return [
        PlanProblem("unknown_tool", f"task {node.id} calls {node.tool}, which is no tool here", (node.id,))
        for node in nodes
        if node.tool is not None and node.tool not in tools
    ]


def _bad_places(nodes: Sequence[PlanNode], order: Sequence[str]) -> list[PlanProblem]:
    if not any(node.argument.places for node in nodes):
        return []
    ancestors = _ancestors(nodes, order)
    return [
        PlanProblem(
            "placeholder_not_ancestor",
            f"task {node.id} uses the result of {place}, on which it does not depend",
            (node.id, place),
        )
        for node in nodes
        for place in dict.fromkeys(node.argument.places)
        if place not in ancestors[node.id]
    ]


def ordered(nodes: Sequence[PlanNode]) -> list[str]:
    """Return the ids so that each comes after those that it depends on; tasks on or behind a cycle are left out."""
    missing = {node.id: len(node.depends_on) for node in nodes}
    users: dict[str, list[str]] = {node.id: [] for node in nodes}
    for node in nodes:
        for other in node.depends_on:
            users[other].append(node.id)
    ready = [id for id, count in missing.items() if not count]
    for id in ready:
        for user in users[id]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return ready


def find_cycle(nodes: Sequence[PlanNode]) -> list[str]:
    """Return the ids on one cycle, in the order of their dependencies; empty if there is none."""
    done = set(ordered(nodes))
    rest = {node.id: node for node in nodes if node.id not in done}
    if not rest:
        return []
    # Each remaining task depends on a remaining one, so following them ends on a cycle.
    path: dict[str, None] = {}
    id = next(iter(rest))
    while id not in path:
        path[id] = None
        id = next(other for other in rest[id].depends_on if other in rest)
    steps = list(path)
    return steps[steps.index(id) :]


def _ancestors(nodes: Sequence[PlanNode], order: Sequence[str]) -> dict[str, frozenset[str]]:
    by_id = {node.id: node for node in nodes}
    found: dict[str, frozenset[str]] = {}
    for id in order:
        direct = by_id[id].depends_on
        found[id] = frozenset(direct).union(*(found[other] for other in direct))
    return found


_PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.-]*)\}")


def parse_template(text: str) -> Template:
    """Read a text with placeholders such as `{a}`; `{{` and `}}` are escaped braces, and other braces are literal."""
    if "{" not in text and "}" not in text:
        return Template((text,))
    literals, places = [""], []
    position = 0
    for match in _PLACE.finditer(text):
        literals[-1] += text[position : match.start()]
        position = match.end()
        if match[1] is None:
            literals[-1] += match[0][0]
        else:
            places.append(match[1])
            literals.append("")
    literals[-1] += text[position:]
    return Template(tuple(literals), tuple(places))
