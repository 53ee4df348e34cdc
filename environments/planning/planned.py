"""Relate the calls of a turn to the plan: their tasks, the calls that they wait for, and their placeholders.

A query belongs to the task that it names, as in `T2: query`; without a name to the task whose words it shares most.
Only names and graph markup make a call wait: a guess never delays one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from treadle.agent.contract import Call
from treadle.environments.planning.batch import split_label
from treadle.environments.planning.graph import Plan, PlanNode, Template, parse_template
from treadle.environments.planning.plan_text import task_id

_WORD = re.compile(r"\w+")
_COMMON_WORDS = (
    "a an and are as at by did do does find for from how in is it look of on or search that the to up was what when "
    "where which who whom whose with"
)
_COMMON = frozenset(_COMMON_WORDS.split())


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of a turn.

    Attributes:
        call: The call, without the label of its task and with placeholders not filled.
        task: Id of its task in the plan; empty for a call without one.
        argument: The text of the call, with placeholders for the results of tasks.
        is_named: Whether the model named the task, or the call is one of the plan itself.
    """

    call: Call
    task: str = ""
    argument: Template = Template(("",))
    is_named: bool = False


def plan_calls(
    plan: Plan, turn: int, tags: Mapping[str, str], parameters: Mapping[str, str]
) -> tuple[PlannedCall, ...]:
    """Return the calls of a plan in graph markup that is run as a whole, in the order of its tasks.

    `tags` maps names of tools in the plan to the tags that call them, `parameters` each tag to its argument's name.
    """
    found = []
    for place, node in enumerate(plan.nodes):
        if node.tool is not None:
            tag = tags[node.tool]
            text = _shown(node.argument)
            call = Call(f"t{turn}.call_{tag}_{place}", tag, {parameters[tag]: text})
            found.append(PlannedCall(call, node.id, node.argument, is_named=True))
    return tuple(found)


def planned_calls(calls: Sequence[Call], plan: Plan | None, done: Collection[str] = ()) -> tuple[PlannedCall, ...]:
    """Return the calls of a turn's tags with their tasks; `done` are the tasks that earlier turns answered."""
    found: list[PlannedCall] = []
    taken = set(done)
    words: dict[str, set[str]] = {}
    for call in calls:
        if plan is None or not plan.is_valid or call.error or len(call.arguments) != 1:
            found.append(PlannedCall(call, argument=Template((call.text,))))
            continue
        ((parameter, text),) = call.arguments.items()
        label, query = split_label(str(text))
        if (task := task_id(label) if label else "") in plan.by_id:
            argument = _places_of(query, task, plan)
            found.append(PlannedCall(Call(call.id, call.tool, {parameter: query}), task, argument, is_named=True))
        else:
            words = words or _words_of(plan.nodes)
            task = _closest(str(text), words, taken)
            found.append(PlannedCall(call, task, Template((str(text),))))
        taken.add(task)
    return tuple(found)


def _places_of(query: str, task: str, plan: Plan) -> Template:
    """Return a query as a template if its task depends on all tasks that the placeholders name, else as plain text."""
    template = parse_template(query)
    ancestors = plan.ancestors()[task]
    return template if template.places and ancestors.issuperset(template.places) else Template((query,))


def _shown(template: Template) -> str:
    return template.filled({place: f"{{{place}}}" for place in template.places})


def _closest(query: str, words_of: Mapping[str, set[str]], taken: Collection[str]) -> str:
    words = _words(query)
    rank = {id: (len(words & own), id not in taken) for id, own in words_of.items()}
    best = max(rank, key=lambda id: rank[id], default="")
    return best if best and rank[best][0] else ""


def _words_of(nodes: Sequence[PlanNode]) -> dict[str, set[str]]:
    return {node.id: _words(node.description) for node in nodes}


def _words(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.lower()) if word not in _COMMON}


def call_dependencies(calls: Sequence[PlannedCall], plan: Plan | None) -> dict[str, tuple[str, ...]]:
    """Map the id of each call of a turn to the ids of the calls and tasks that it waits for.

    A task of the plan without a call in this turn is an item of its own, with an id such as `=T3`; it ends as soon as
    all that it waits for has ended. A call whose task is a guess waits for nothing.
    """
    named = [one for one in calls if one.is_named] if plan is not None and plan.is_valid else []
    found: dict[str, tuple[str, ...]] = {one.call.id: () for one in calls}
    if plan is None or not named:
        return found
    items = {node.id: [one.call.id for one in named if one.task == node.id] or [f"={node.id}"] for node in plan.nodes}
    for node in plan.nodes:
        needed = tuple(item for other in node.depends_on for item in items[other])
        found |= dict.fromkeys(items[node.id], needed)
    return found
