"""Play a planning agent by rule, from instructions, question and observations alone.

The planner writes a plan and searches for all facts at once that do not depend on others; the sequential agent searches
for one fact after the other. Both end with the same thought and answer, once all facts are in the observations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from treadle.demo.comparisons import can_be_compared_at_a_glance
from treadle.demo.tutor.conversation import Call, Conversation
from treadle.demo.tutor.facts import label, queries, read_facts
from treadle.demo.tutor.policy import follow_paths
from treadle.demo.world import EntityKind
from treadle.demo.world_templates import KIND_OF, RecognizedQuestion, recognise

PlanningRole = Literal["planner", "sequential"]

_QUESTION = re.compile(r"(?:\A|\n)(?:Question|Task): ")
_SEARCH = re.compile(r"<wiki_search>(.*?)</wiki_search>", re.DOTALL)
_OBSERVATION = re.compile(r"<observation>\n(.*?)\n</observation>", re.DOTALL)
_MAX_TRIES = 2
_KINDS: dict[EntityKind, str] = {"mountain": "Mount {}", "lake": "Lake {}", "person": "{}"}


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a planning agent sees.

    Attributes:
        instructions: Text before the question.
        question: The question.
        searched: Queries so far, in order.
        observations: Texts of the observations so far.
    """

    instructions: str
    question: str
    searched: tuple[str, ...]
    observations: tuple[str, ...]


def read_transcript(conversation: Conversation) -> Transcript:
    """Read the prompt and the open turn of a conversation with a planning agent."""
    # An example in the instructions may have a question of its own, so the last one counts.
    starts = list(_QUESTION.finditer(conversation.user))
    begin, end = (starts[-1].start(), starts[-1].end()) if starts else (0, 0)
    queries = [query.strip() for body in _SEARCH.findall(conversation.turn) for query in body.split("|")]
    return Transcript(
        conversation.user[:begin],
        conversation.user[end:].strip(),
        tuple(filter(None, queries)),
        tuple(_OBSERVATION.findall(conversation.turn)),
    )


def planning_role(conversation: Conversation) -> PlanningRole | None:
    """Return the role that the instructions of the user message ask for; None if it is no planning agent."""
    low = read_transcript(conversation).instructions.lower()
    if "wiki_search" not in low:
        return None
    return "planner" if "dependenc" in low else "sequential"


def next_planning_turn(conversation: Conversation, role: PlanningRole) -> str:
    """Return the next turn of a planning agent: a thought, then a search or the answer."""
    seen = read_transcript(conversation)
    begin = "<think>" if conversation.thought is None else ""
    thought, action = _next_step(seen, role)
    return f"{begin}{thought}</think>\n{action}"


def _next_step(seen: Transcript, role: PlanningRole) -> tuple[str, str]:
    asked = recognise(seen.question)
    if asked is None or not asked.template.paths:
        return _look_up_once(seen)
    facts = read_facts(Call("search", "", text) for text in seen.observations)
    missing, values = follow_paths(asked, facts)
    if not missing:
        return _conclude(asked, values)
    for name, attribute in missing:
        if _tries(seen, name) >= _MAX_TRIES:
            return f"No document gives the {label(attribute)} of {_named(name, attribute)}.", _answer("unknown")
    if role == "sequential":
        return _count_missing(asked, len(missing)), _search(seen, missing[:1])
    if seen.searched:
        return "I search for what is still missing.", _search(seen, missing)
    return _count_missing(asked, len(missing)), f"{_plan(asked)}\n{_search(seen, missing)}"


def _count_missing(asked: RecognizedQuestion, num_missing: int) -> str:
    aim = f" for the {_sought(asked)} value" if asked.template.combine in ("larger", "smaller") else ""
    return f"Facts{aim}: {num_missing}."


def _sought(asked: RecognizedQuestion) -> str:
    """Return the word for the requested value as in the question, such as `larger` or `largest`."""
    combine = asked.template.combine
    return combine if len(asked.template.paths) == 2 else f"{combine.removesuffix('er')}est"


def _plan(asked: RecognizedQuestion) -> str:
    """Return the plan as a list of tasks: one for each fact, and one that combines them."""
    tasks: list[str] = []
    last = []
    for slot, *attributes in asked.template.paths:
        what, needed = asked.names[slot], ""
        for attribute in attributes:
            tasks.append(_task(f"{label(attribute)} of {what}", len(tasks) + 1, needed))
            what, needed = f"the {label(attribute)}", f"T{len(tasks)}"
        last.append(needed)
    if len(last) > 1:
        is_comparison = asked.template.combine in ("larger", "smaller")
        what = f"the {_sought(asked)} value" if is_comparison else asked.template.combine
        tasks.append(_task(what, len(tasks) + 1, ", ".join(last)))
    return "\n".join(["<plan>", *tasks, "</plan>"])


def _task(what: str, number: int, needed: str) -> str:
    return f"T{number}: {what}" + (f"\n- Dependencies: {needed}" if needed else "")


def _search(seen: Transcript, missing: Sequence[tuple[str, str]]) -> str:
    """Return one search with a query for each missing fact; a second try uses other words."""
    asked = []
    for name, attribute in missing:
        options = queries(name, attribute)
        asked.append(options[_tries(seen, name) % len(options)])
    return f"<wiki_search>{' | '.join(asked)}</wiki_search>"


def _tries(seen: Transcript, name: str) -> int:
    return sum(name in query.split() for query in seen.searched)


def _conclude(asked: RecognizedQuestion, values: Sequence[str]) -> tuple[str, str]:
    template = asked.template
    if template.combine == "value":
        return f"The {label(template.paths[0][-1])} is {values[0]}.", _answer(values[0])
    if not all(value.isdecimal() for value in values):
        return "These are no numbers.", _answer("unknown")
    numbers = [int(value) for value in values]
    if template.combine in ("sum", "difference"):
        number = sum(numbers) if template.combine == "sum" else abs(numbers[0] - numbers[1])
        return f"The {template.combine} of {values[0]} and {values[1]} is {number}.", _answer(str(number))
    names = [asked.names[path[0]] for path in template.paths]
    found = f"Values: {', '.join(map(' '.join, zip(names, values, strict=True)))}."
    if (winner := template.winner(numbers)) is None:
        return f"{found} They are equal.", _answer("equal")
    if can_be_compared_at_a_glance(numbers):
        return f"{found} {_count(asked, values, winner)}", _answer(names[winner])
    return f"{found} The {_sought(asked)} value is {values[winner]}, {names[winner]}.", _answer(names[winner])


def _count(asked: RecognizedQuestion, values: Sequence[str], winner: int) -> str:
    """Return text that finds the requested value by counting: down from 9 for the largest, up from 1 for the smallest.

    The count ends at the first digit of the requested value, and the name of its entity follows. A small model can
    write this without comparing digits, because it only has to continue the count until one of the listed first digits
    is reached. The word for the requested value, such as `larger`, is repeated right before the count, because it
    decides the direction.
    """
    names = [asked.names[path[0]] for path in asked.template.paths]
    digits = [value[0] for value in values]
    last = int(digits[winner])
    down = asked.template.combine == "larger"
    counted = range(9, last - 1, -1) if down else range(1, last + 1)
    listed = ", ".join(map(" ".join, zip(digits, names, strict=True)))
    sought = f"Which has the {_sought(asked)} value? {'Down' if down else 'Up'}"
    return f"First digits: {listed}. {sought}: {' '.join(map(str, counted))} {names[winner]}."


def _look_up_once(seen: Transcript) -> tuple[str, str]:
    """Return the turn for a question outside the sample world: one search, then the first words of its result."""
    query = " ".join(re.sub(r"[<>|]", " ", seen.question).split())[:200]
    if not seen.searched and query:
        return "I do not know this, so I look it up.", f"<wiki_search>{query}</wiki_search>"
    _, _, found = seen.observations[-1].rpartition("\n") if seen.observations else ("", "", "")
    return "This is what I found.", _answer(" ".join(found.replace("<", " ").split()[:12]) or "unknown")


def _named(name: str, attribute: str) -> str:
    kind = KIND_OF[attribute]
    return _KINDS.get(kind, f"the {kind} {{}}").format(name)


def _answer(value: str) -> str:
    # Only after a space does a name have the same tokens as in the text before it.
    return f"<answer> {value}</answer>"
