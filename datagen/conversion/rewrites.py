"""Check that a teacher's rewrite keeps what the source found, and that its calls follow its plan.

The result is written in the form in which a rollout of the dialect has it: one block per query, labelled with its call.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.agent.contract import Call
from treadle.datagen.texts.blocks import ANSWER, TEXT, Block, read_blocks
from treadle.datagen.texts.spans import OBSERVATION
from treadle.datagen.texts.violations import block_violations
from treadle.environments.planning.batch import read_calls, split_label
from treadle.environments.planning.dialect import PLAN, PlanningDialect
from treadle.environments.planning.graph import Plan, PlanNode
from treadle.environments.planning.plan_text import task_id
from treadle.environments.planning.violations import VIOLATIONS

REWRITE_FAULTS = {
    "prompt_too_long": "the transcript does not fit into the teacher's window",
    "timeout": "the time for all rewrites of the trajectory is over",
    "reply_truncated": "the teacher's reply ended at its token limit",
    "unbalanced": "a tag is opened or closed without its counterpart",
    "nested": "a tag stands inside another one",
    "odd_marker": "the marker of an observation is spelled in another way",
    "text_outside": "text stands outside of tags",
    "no_think": "a block that needs a thought before it has none",
    "no_plan": "there is no plan before the first call",
    "several_plans": "there is more than one plan",
    "bad_plan": "the plan cannot be read, or its tasks depend on each other in a cycle",
    "no_search": "there is no query",
    "unknown_call": "a call is of another tool than the search",
    "empty_query": "a tag has no query",
    "observation_count": "the observations behind a batch are not as many as its queries",
    "observation_changed": "an observation is not one of the source's",
    "observation_missing": "an observation of the source is missing, or repeated",
    "no_answer": "the last block is not an answer",
    "answer_changed": "the answer is not that of the source",
    "query_not_in_plan": "a query belongs to no task of the plan",
    "call_before_inputs": "a query stands before the results that its task depends on",
    "order": "blocks stand where the dialect does not allow them",
    "too_few_searches": "there are fewer queries than min_searches",
    "too_long": "the rewrite has more tokens than max_tokens",
}
"""Description of each fault of a rewrite by its code."""

_WORD = re.compile(r"\w{2,}")
_SMALL_WORDS = frozenset({
    "the", "of", "and", "for", "with", "what", "when", "where", "which", "who", "whose", "whom", "how", "find", "get",
    "search", "look", "is", "are", "was", "were", "did", "does", "has", "have", "had", "in", "on", "at", "by", "to",
    "from", "an", "or", "it", "its", "their", "his", "her",
})  # fmt: skip
"""Words that say nothing about which task a query belongs to."""
_MIN_OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What a rewrite must keep of its source, byte for byte.

    Attributes:
        observations: Text of each observation, in the order of the source.
        answer: Text of the answer.
    """

    observations: tuple[str, ...]
    answer: str

    def exact(self) -> dict[str, list[str]]:
        """Return the observations byte for byte, grouped by their text without the white space around it."""
        found: dict[str, list[str]] = {}
        for text in self.observations:
            found.setdefault(text.strip(), []).append(text)
        return found


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewrite that follows all rules, in the form of the dialect.

    Attributes:
        text: The whole trajectory.
        nodes: Tasks of its plan.
        widths: Number of queries of each batch.
    """

    text: str
    nodes: tuple[PlanNode, ...]
    widths: tuple[int, ...]

    @property
    def num_searches(self) -> int:
        """Number of queries."""
        return sum(self.widths)


class RewriteRefused(Exception):
    """A rewrite that breaks a rule."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail or REWRITE_FAULTS[reason]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Calls that directly follow each other, with their observations and the blocks before them."""

    before: Sequence[Block]
    calls: Sequence[Block]
    observations: Sequence[Block]


def checked_rewrite(reply: str, source: SourceFacts, dialect: PlanningDialect) -> Rewrite:
    """Return a reply as a trajectory of the dialect; raise RewriteRefused for the first rule that it breaks.

    `source` may not contain markers of the dialect. The teacher's white space around observations and blocks is
    replaced by that of a rollout.
    """
    blocks = _blocks(reply, dialect)
    plan = _plan(blocks, dialect)
    batches, rest = _batches(blocks, dialect)
    _check_observations(batches, source)
    _check_answer(rest, source)
    text, calls = _written(batches, rest, source, dialect)
    _check_calls(plan, calls)
    for code in block_violations(reply.strip(), blocks, OBSERVATION, dialect):
        raise RewriteRefused(code if code in REWRITE_FAULTS else "order", VIOLATIONS[code])
    return Rewrite(text, plan.nodes, tuple(map(len, calls)))


def _blocks(reply: str, dialect: PlanningDialect) -> list[Block]:
    blocks, fault = read_blocks(reply.strip())
    if fault:
        raise RewriteRefused(fault)
    for block in blocks:
        if block.name == TEXT:
            raise RewriteRefused("text_outside", f"text outside of tags: {_shown(block.body)}")
        if block.name != OBSERVATION and block.name not in dialect.by_name:
            raise RewriteRefused("unknown_call", f"the dialect has no tag {block.name}")
    return blocks


def _plan(blocks: Sequence[Block], dialect: PlanningDialect) -> Plan:
    """Return the plan; raise RewriteRefused unless there is exactly one, valid and before the first call."""
    plans = [block for block in blocks if block.name == PLAN]
    first_call = next((block.start for block in blocks if block.name in dialect.tools), None)
    if first_call is None:
        raise RewriteRefused("no_plan" if not plans else "no_search")
    if not plans or plans[0].start > first_call:
        raise RewriteRefused("no_plan")
    if len(plans) > 1:
        raise RewriteRefused("several_plans")
    plan = dialect.parse_plan(plans[0].body)
    if not plan.is_valid:
        raise RewriteRefused("bad_plan", "; ".join(f"{one.code}: {one.text}" for one in plan.problems))
    return plan


def _batches(blocks: Sequence[Block], dialect: PlanningDialect) -> tuple[list[_Batch], list[Block]]:
    """Return the batches of calls with their observations, and the blocks after the last one."""
    batches: list[_Batch] = []
    before: list[Block] = []
    position = 0
    while position < len(blocks):
        if blocks[position].name == OBSERVATION:
            raise RewriteRefused("observation_count", "an observation follows no call")
        if blocks[position].name not in dialect.tools:
            before.append(blocks[position])
            position += 1
            continue
        calls = _run_of(blocks, position, dialect.tools)
        found = _run_of(blocks, position + len(calls), (OBSERVATION,))
        batches.append(_Batch(before, calls, found))
        before, position = [], position + len(calls) + len(found)
    return batches, before


def _run_of(blocks: Sequence[Block], start: int, names: Sequence[str]) -> list[Block]:
    end = start
    while end < len(blocks) and blocks[end].name in names:
        end += 1
    return list(blocks[start:end])


def _check_observations(batches: Sequence[_Batch], source: SourceFacts) -> None:
    """Raise RewriteRefused unless the observations are those of the source, each once, byte for byte."""
    known = Counter(text.strip() for text in source.observations)
    found = [_bare(block.body) for batch in batches for block in batch.observations]
    for text in found:
        if text not in known:
            raise RewriteRefused("observation_changed", f"the source has no observation {_shown(text)}")
    different = known - Counter(found) or Counter(found) - known
    if different:
        raise RewriteRefused("observation_missing", f"missing or repeated: {_shown(next(iter(different)))}")


def _check_answer(rest: Sequence[Block], source: SourceFacts) -> None:
    if not rest or rest[-1].name != ANSWER:
        raise RewriteRefused("no_answer")
    if rest[-1].body.strip() != source.answer.strip():
        raise RewriteRefused("answer_changed", f"the answer is {_shown(rest[-1].body.strip())}")


def _written(
    batches: Sequence[_Batch], rest: Sequence[Block], source: SourceFacts, dialect: PlanningDialect
) -> tuple[str, list[tuple[Call, ...]]]:
    """Return the text as a rollout writes it, and the calls of each batch."""
    exact = source.exact()
    parameters = {name: dialect.by_name[name].parameter for name in dialect.tools}
    parts: list[str] = []
    calls: list[tuple[Call, ...]] = []
    for number, batch in enumerate(batches):
        said = "\n".join(_marked(block) for block in (*batch.before, *batch.calls))
        # Thoughts before the calls contain no calls, so only the tags of the batch are read as calls.
        made = read_calls(said, number, parameters, dialect.splitting)
        if any(call.error for call in made):
            raise RewriteRefused("empty_query", f"batch {number + 1} has an empty tag")
        if len(made) != len(batch.observations):
            detail = f"batch {number + 1} has {len(made)} queries and {len(batch.observations)} observations"
            raise RewriteRefused("observation_count", detail)
        parts.append(said)
        for call, block in zip(made, batch.observations, strict=True):
            # As a rollout labels results: with the task, if the query names it.
            named = split_label(call.text)[0]
            label = f"{call.id}, task {task_id(named)}" if named else call.id
            parts.append(dialect.result(exact[_bare(block.body)].pop(0), label).text)
        calls.append(made)
    parts.append("\n".join([*map(_marked, rest[:-1]), f"<{ANSWER}>{source.answer}</{ANSWER}>"]))
    return "".join(parts), calls


def _marked(block: Block) -> str:
    return f"<{block.name}>{block.body}</{block.name}>"


def _check_calls(plan: Plan, batches: Sequence[Sequence[Call]]) -> None:
    """Raise RewriteRefused for a query that belongs to no task, or comes before results that its task depends on.

    A task without queries is done by reasoning alone. Tasks that depend on it must come after the results of the tasks
    that it depends on.
    """
    placed: list[tuple[int, str, str]] = []
    used: set[str] = set()
    for number, batch in enumerate(batches):
        for query in _queries(batch):
            id = _task_of(query, plan, used)
            if id is None:
                raise RewriteRefused("query_not_in_plan", f"no task has the query {_shown(query)}")
            used.add(id)
            placed.append((number, id, query))
    first: dict[str, int] = {}
    for number, id, _ in placed:
        first.setdefault(id, number)
    ancestors = plan.ancestors()
    for number, id, query in placed:
        early = [other for other in sorted(ancestors[id]) if first.get(other, -1) >= number]
        if early:
            detail = f"the query {_shown(query)} of {id} stands before the result of {early[0]}"
            raise RewriteRefused("call_before_inputs", detail)


def _queries(batch: Sequence[Call]) -> Iterator[str]:
    return (call.text for call in batch)


def _task_of(query: str, plan: Plan, used: set[str]) -> str | None:
    """Return the task that a query names, or else the one whose words it shares; None if there is none.

    Of several tasks, the one with most words in common is taken, and among equals one without a query so far.
    """
    label, bare = split_label(query)
    if label:
        id = task_id(label)
        return id if id in plan.by_id else None
    asked = _words(bare)
    best, best_rank = None, (_MIN_OVERLAP, False)
    for node in plan.nodes:
        described = _words(node.description)
        smaller = min(len(asked), len(described))
        share = len(asked & described) / smaller if smaller else 0.0
        rank = (share, node.id not in used)
        if share >= _MIN_OVERLAP and (best is None or rank > best_rank):
            best, best_rank = node.id, rank
    return best


def _words(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.casefold()) if word not in _SMALL_WORDS}


_LABEL = re.compile(r"\A\s*\[t\d{1,6}\.call_\w{1,80}(?:, task [\w.-]{1,40})?\]\n")


def without_label(body: str) -> str:
    """Return an observation without the line that names its call."""
    return _LABEL.sub("", body)


def _bare(body: str) -> str:
    """Return an observation without the line that names its call, and without the white space around it."""
    return without_label(body).strip()


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 80 else flat[:77] + "...")
