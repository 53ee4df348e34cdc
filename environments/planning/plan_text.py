"""Read plans from the text of a model, in two syntaxes: a list of tasks, and graph markup.

List of tasks (arXiv 2510.25320)::

    T1: the birth year of the director of film A
    - Dependencies: none
    T2: compare
    - Dependencies: T1

Graph markup::

    <graph>
    <node id="a">search("director of film A")</node>
    <node id="b" depends="a">search("birth year of {a}")</node>
    </graph>

The text is hostile: it is read by patterns that take linear time, and never by a parser of XML.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from treadle.environments.planning.graph import (
    MAX_NODES,
    Plan,
    PlanNode,
    PlanProblem,
    Template,
    checked_plan,
    parse_template,
)

_NODE_OPENING = re.compile(r"<node\b([^<>]*)>", re.IGNORECASE)
_NODE_CLOSING = re.compile(r"</node\s*>", re.IGNORECASE)
_GRAPH = re.compile(r"</?graph\b[^<>]*>|<node\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""(?<![\w-])([A-Za-z_][\w-]*+)\s*+=\s*+(?:"([^"]*)"|'([^']*)')""")
_CALL = re.compile(r"([A-Za-z_]\w*)\(")
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"|\'([^\'\\]*(?:\\.[^\'\\]*)*)\'', re.DOTALL)
_KEYWORD = re.compile(r"[A-Za-z_]\w*\s*=\s*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}

# Possessive quantifiers do not backtrack, so that a line is matched in linear time.
_HEADER = re.compile(
    r"[ \t]*+(?:[-*•#]++[ \t]*+|\d++[.)][ \t]++)?[*_`]*+(?:task[ \t]*+[-#]?|t)[ \t]*+(\d{1,9})[*_`]*+[ \t]*+[:.)]"
    r"[*_`]*+[ \t]*+(.*)",
    re.IGNORECASE,
)
_DEPENDENCIES = re.compile(
    r"[ \t]*+(?:[-*•][ \t]*+)?[*_`]*+(?:dependencies|dependency|depends[ \t]++on|deps)[*_`]*+[ \t]*+:"
    r"[*_`]*+[ \t]*+(.*)",
    re.IGNORECASE,
)
_NONE = re.compile(r"(?:none|no|nothing|n/?a|null|-|\[\s*\]|\{\s*\})?[.\s]*", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,;&]|\band\b", re.IGNORECASE)
_NORMALIZED_ID = re.compile(r"T[1-9][0-9]*")
_TASK_ID = re.compile(r"(?:task[\s_#-]*|t[\s_-]*)0*(\d{1,9})", re.IGNORECASE)


def parse_plan(text: str, tools: Collection[str] = (), *, max_nodes: int = MAX_NODES) -> Plan:
    """Read a plan from the text inside its tags, in either syntax.

    A plan that cannot be read or scheduled has problems; nothing is raised for any text. `tools` are the names that
    calls of graph markup may have.
    """
    if _GRAPH.search(text):
        nodes, problems = _graph_nodes(text, max_nodes)
    else:
        nodes, problems = _listed_nodes(text, max_nodes)
    return checked_plan(nodes, tools=tools, max_nodes=max_nodes, problems=problems)


def task_id(text: str) -> str:
    """Return a normalized id: `Task 2`, `task-2` and `t2` are `T2`; any other one is stripped."""
    if _NORMALIZED_ID.fullmatch(text):
        return text
    bare = text.strip().strip("*_`[](){}\"'").strip()
    match = _TASK_ID.fullmatch(bare)
    return f"T{int(match[1])}" if match else bare


def _ids(text: str) -> tuple[str, ...]:
    """Return the ids of a list, in order and without repetition; empty for `none`."""
    if _NONE.fullmatch(text.strip()):
        return ()
    parts = (task_id(part.strip().rstrip(".")) for part in _SEPARATOR.split(text.strip().strip("[]")))
    return tuple(dict.fromkeys(part for part in parts if part))


def _listed_nodes(text: str, max_nodes: int) -> tuple[list[PlanNode], list[PlanProblem]]:
    """Read a list of tasks. Lines before the first header are ignored; other lines of a task extend its description."""
    found: list[tuple[str, list[str], dict[str, None]]] = []
    for line in text.splitlines():
        if header := _HEADER.fullmatch(line):
            found.append((f"T{int(header[1])}", [header[2].strip()], {}))
        elif found and (match := _DEPENDENCIES.fullmatch(line)):
            found[-1][2].update(dict.fromkeys(_ids(match[1])))
        elif found and (more := line.strip()):
            found[-1][1].append(more)
        if len(found) > max_nodes:  # a longer plan is refused anyway
            break
    return [PlanNode(id, " ".join(filter(None, words)), tuple(needed)) for id, words, needed in found], []


def _graph_nodes(text: str, max_nodes: int) -> tuple[list[PlanNode], list[PlanProblem]]:
    nodes: list[PlanNode] = []
    problems: list[PlanProblem] = []
    openings = list(_NODE_OPENING.finditer(text))[: max_nodes + 1]
    for number, opening in enumerate(openings):
        attributes = {name.lower(): first or second for name, first, second in _ATTRIBUTE.findall(opening[1])}
        id = task_id(attributes.get("id", ""))
        if not id:
            problems.append(PlanProblem("unreadable", f"node {number + 1} of the graph has no id"))
            continue
        body = ""
        if not opening[1].rstrip().endswith("/"):
            end = openings[number + 1].start() if number + 1 < len(openings) else len(text)
            closing = _NODE_CLOSING.search(text, opening.end(), end)
            if closing is None:
                problems.append(PlanProblem("unreadable", f"node {id} of the graph is not closed", (id,)))
                continue
            body = text[opening.end() : closing.start()].strip()
        node = _graph_node(id, body, _ids(attributes.get("depends", attributes.get("depends_on", ""))))
        if isinstance(node, PlanProblem):
            problems.append(node)
        else:
            nodes.append(node)
    return nodes, problems


def _graph_node(id: str, body: str, depends_on: tuple[str, ...]) -> PlanNode | PlanProblem:
    """Return the task of a node: a call `tool("argument")`, or else reasoning."""
    call = _CALL.match(body)
    if call is None or not body.endswith(")"):
        return PlanNode(id, body, depends_on)
    inner = body[call.end() : -1].strip()
    if keyword := _KEYWORD.match(inner):
        inner = inner[keyword.end() :]
    string = _STRING.fullmatch(inner)
    if string is None and inner:
        text = f'node {id} of the graph must call its tool with one quoted text, as in {call[1]}("...")'
        return PlanProblem("unreadable", text, (id,))
    written = "" if string is None else string[1] if string[1] is not None else string[2]
    argument = _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), written) if "\\" in written else written
    return PlanNode(id, body, depends_on, call[1], _own_ids(parse_template(argument)))


def _own_ids(template: Template) -> Template:
    if not template.places:
        return template
    return Template(template.literals, tuple(task_id(place) for place in template.places))
