"""Read the trajectories to rewrite: right rollouts of the policy, or files of whole texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.contract import Task
from treadle.agent.dialects.base import FRAME, RESULT
from treadle.agent.dialects.tags import TagDialect, neutralise
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.runs.stage import Rows
from treadle.datagen.conversion.rewrites import SourceFacts, without_label
from treadle.datagen.conversion.settings import ConversionSettings
from treadle.datagen.sft_rows.trajectories import QuestionReader, Trajectories
from treadle.datagen.texts.blocks import ANSWER, TEXT_FAULTS, order_fault, read_blocks
from treadle.datagen.texts.files import ROW_FAULTS, WholeText, read_texts
from treadle.datagen.texts.spans import OBSERVATION
from treadle.environments.planning.dialect import PlanningDialect

SOURCE_FAULTS = {
    "failed": "an infrastructure error prevented the rollout",
    "held_out": "the question is held out for evaluation",
    "unfinished": "the rollout did not end with its task, or was truncated",
    "unknown_verdict": "there is no verdict on the answer",
    "wrong_answer": "the answer is wrong",
    "trimmed": "its context was trimmed, so that no request showed the whole of it",
    "messages": "the environment wrote messages between turns, or results of native calls",
    **ROW_FAULTS,
    **TEXT_FAULTS,
    "marker_in_result": "a result contains a marker of the dialect of the rewrites",
    "too_few_searches": "there are fewer results than min_searches",
}
"""Description of each reason why a trajectory is not sent to the teacher, by its code."""

_COLUMNS = (
    "rollout_key", "question_key", "dataset", "domain", "environment", "model", "status", "truncated",
    "first_messages", "segments",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConversionSource:
    """A trajectory to rewrite.

    Attributes:
        whole: The trajectory as a whole text, with `<observation>` around results.
        task: The question without its gold answers.
        facts: What a rewrite must keep; None if it cannot be rewritten.
        reason: Code of SOURCE_FAULTS if it cannot be rewritten, else empty.
    """

    whole: WholeText
    task: Task
    facts: SourceFacts | None
    reason: str = ""


def conversion_sources(
    settings: ConversionSettings, inputs: Mapping[str, Sequence[Rows]], dialect: PlanningDialect
) -> Iterator[ConversionSource]:
    """Yield the trajectories in the order of their rows; raise DataError if a file cannot be read.

    `dialect` is the dialect of the rewrites.
    """
    for whole, task, reason in _texts(settings) if settings.options.texts else _rollouts(settings, inputs):
        facts = None
        if not reason:
            facts, reason = _facts(whole, dialect, settings.options.min_searches)
        yield ConversionSource(whole, task, facts, reason)


def _facts(whole: WholeText, dialect: PlanningDialect, min_searches: int) -> tuple[SourceFacts | None, str]:
    """Return what a rewrite must keep, or None and the reason why the trajectory cannot be rewritten."""
    blocks, fault = read_blocks(whole.text, whole.tag)
    if fault := fault or order_fault(blocks, whole.tag):
        return None, fault
    observations = tuple(_result_text(block.body) for block in blocks if block.name == whole.tag)
    if any(neutralise(text, dialect) != text for text in observations):
        return None, "marker_in_result"
    if len(observations) < min_searches:
        return None, "too_few_searches"
    answer = [block.body for block in blocks if block.name == ANSWER][-1]
    return SourceFacts(observations, answer), ""


def _result_text(body: str) -> str:
    """Return a result without its label and the line breaks next to its markers, which belong to the layout."""
    text = without_label(body)
    return text.removeprefix("\n").removesuffix("\n")


def _texts(settings: ConversionSettings) -> Iterator[tuple[WholeText, Task, str]]:
    for whole in read_texts(settings.options.texts):
        yield whole, Task(whole.question_key, whole.question, (), whole.dataset, whole.domain), whole.reason


def _rollouts(
    settings: ConversionSettings, inputs: Mapping[str, Sequence[Rows]]
) -> Iterator[tuple[WholeText, Task, str]]:
    trajectories, questions = Trajectories(inputs), QuestionReader(inputs["questions"])
    held_out = trajectories.held_out()
    dialects = {name: one.turn_dialect for name, one in settings.named_environments().items()}
    for batches in trajectories.judged_batches([*_COLUMNS, "samples"]):
        for batch in batches:
            counts = batch.column("samples").value_lengths().to_pylist()
            for row, num_contexts in zip(batch.drop_columns(["samples"]).to_pylist(), counts, strict=True):
                question = questions[row["question_key"]]
                known = Task.from_row(question) if question is not None else Task(row["question_key"], "")
                text, reason = "", _verdict_fault(row, held_out)
                if not reason and num_contexts > 1:
                    reason = "trimmed"
                if not reason:
                    text, reason = _text_of(row, dialects[row["environment"]])
                if not reason and question is None:
                    reason = "missing_field"
                yield _whole(row, known, text), Task(known.key, known.text, known.choices, known.dataset), reason


def _verdict_fault(row: Mapping[str, Any], held_out: frozenset[str]) -> str:
    if row["status"] == "failed":
        return "failed"
    if row["question_key"] in held_out:
        return "held_out"
    if row["status"] not in ("answered", "finished") or row["truncated"]:
        return "unfinished"
    if row["correct"] is not True:
        return "unknown_verdict" if row["correct"] is None else "wrong_answer"
    return ""


def _text_of(row: Mapping[str, Any], dialect: object) -> tuple[str, str]:
    """Return a rollout as a whole text with `<observation>` around results, or an empty text and the reason for it."""
    if not isinstance(dialect, TagDialect):
        return "", "messages"
    tag = dialect.by_name[RESULT]
    parts = []
    for segment in orjson.loads(row["segments"]):
        kind, text = segment["kind"], segment["text"]
        if kind == RESULT:
            start = text.find(tag.opening) + len(tag.opening)
            end = text.rfind(tag.closing)
            body = text[start:end] if 0 < start <= end else text
            parts.append(f"\n<{OBSERVATION}>\n{_result_text(body)}\n</{OBSERVATION}>\n\n")
        elif kind in SYSTEM_KINDS - {FRAME}:
            return "", "messages"
        elif kind != FRAME:
            parts.append(text)
    return "".join(parts), ""


def _whole(row: Mapping[str, Any], task: Task, text: str) -> WholeText:
    messages = orjson.loads(row["first_messages"]) if row["first_messages"] else []
    return WholeText(
        key=row["rollout_key"],
        question_key=row["question_key"],
        dataset=row["dataset"],
        domain=row["domain"],
        question=task.text,
        messages=messages,
        text=text,
        tag=OBSERVATION,
        where=f"rollout {row['rollout_key']}",
        model=row["model"],
    )
