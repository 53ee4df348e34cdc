"""Convert trajectories of other programs to rows: segments, calls, and token ids by the policy's tokenizer.

The text is tokenized here, so no token id has origin 1 (sampled). The status of a call is inferred from its result, by
the failure messages of the program published with arXiv 2601.06860 and by Treadle's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from treadle.agent.contract import DEFAULT_ENVIRONMENT, CallRecord, Ledger, Task
from treadle.agent.dialects.base import RESULT, TEXT, Segment
from treadle.agent.dialects.tags import TagDialect, parse_calls, require_tags, tokenise
from treadle.agent.tools.outcome import OutcomeStatus
from treadle.agent.tools.python import TIMEOUT_TEXT
from treadle.agent.tools.search import EMPTY_QUERY, NO_HIT, REFUSED, TOO_SLOW
from treadle.agent.trajectory import Sample, Trajectory
from treadle.agent.transcript import Transcript
from treadle.core.chat import ChatTokenizer
from treadle.datagen.questions.layouts import RowRejected
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.rollouts.rows import failed_row, rollout_key, row_of
from treadle.formats.et_agent.records import IMPORTED, ImportRecord, ImportTrajectory

_FAILURES = ("Tool execute failed", "Local search failed: ", "Bing search failed: ")
_STATUS_BY_TEXT: Mapping[str, OutcomeStatus] = {
    "": "empty",
    "Execution Timeout": "timeout",
    "invalid query": "invalid",
    TIMEOUT_TEXT: "timeout",
    TOO_SLOW: "timeout",
    NO_HIT: "empty",
    EMPTY_QUERY: "invalid",
    REFUSED: "invalid",
}
"""Whole text of a result -> status of its call, for texts of ET-Agent's program and of Treadle."""
_NOT_RUN = re.compile(
    r"(?:The limit of \w+ calls \(\d+\) is reached; this call was not run|The \w+ tool is not available here)\. "
    r"Go on without it\."
)
_INVALID_PROGRAM = "invalid program: "
_RAISED = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration)\b(?::.*)?")
_NO_TEXT = "the imported file has no text of it"


class ImportRows:
    """Converter of imported trajectories to rows of one stage instance, such as `1/rollouts@base`."""

    def __init__(self, environment: QuestionSettings, tokenizer: ChatTokenizer | None, model: str) -> None:
        """Set up the conversion; `model`: name of the model to which the rows attribute the trajectories."""
        self._environment, self._tokenizer, self._model = environment, tokenizer, model
        self._digests = environment.digests()
        self._tokenizer_digest = tokenizer.digest if tokenizer is not None else ""

    def differs(self, record: ImportRecord, question: Mapping[str, Any]) -> bool:
        """Return whether the agent had another system message than this run has for the question."""
        system = self._environment.system_text_of(question.get("format"))
        return bool(record.system) and record.system.strip() != system.strip()

    def rollouts(self, record: ImportRecord, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return rows of `rollouts`; raise RowRejected if counts of calls do not match the text."""
        return [self._row(one, place, record, question) for place, one in enumerate(record.trajectories)]

    def pools(self, record: ImportRecord, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return rows of `pools` with the verdicts of the file; raise RowRejected as `rollouts` does."""
        rows = self.rollouts(record, question)
        for one, row in zip(record.trajectories, rows, strict=True):
            row["parents"] = [rows[one.parent]["rollout_key"]] if one.parent is not None else []
            row |= {
                "prediction": one.prediction,
                "correct": one.correct,
                "score": _score(one, question["domain"]),
                "judge": _json({"method": IMPORTED, "raw": [], "error": None}),
                "edit_step": one.edit_step,
                "edit_text": one.edit_text,
                "prompts": _json({}),
                "models": _json({}),
                "usage": _json({}),
            }
        return rows

    def _row(
        self, one: ImportTrajectory, place: int, record: ImportRecord, question: Mapping[str, Any]
    ) -> dict[str, Any]:
        head = {
            "rollout_key": rollout_key(question["question_key"], self._model, place, f"{IMPORTED}/{one.operator}"),
            **{name: question[name] for name in ("question_key", "dataset", "domain")},
            "environment": DEFAULT_ENVIRONMENT,
            "model": self._model,
            "sample_index": place,
            "operator": one.operator,
            "parents": [],
            "round": one.round,
            "seed": 0,
        }
        digest = self._digests.of(question)
        if not one.text:
            return failed_row(head, _NO_TEXT, digest, self._tokenizer_digest)
        trajectory = self._trajectory(one, question)
        if one.num_executed is not None:
            ledger = Ledger(trajectory.calls).executed
            found = ledger["search"], ledger["python"]
            if found != one.num_executed:
                raise RowRejected(
                    "counts_differ",
                    f"tool_counts of rollout {place + 1} say {one.num_executed[0]} searches and {one.num_executed[1]} "
                    f"Python calls, its text has results of {found[0]} and {found[1]}",
                )
        return row_of(head, trajectory, digest, self._tokenizer_digest) | {
            "error": "not recorded in the imported file" if one.status == "failed" else None
        }

    def _trajectory(self, one: ImportTrajectory, question: Mapping[str, Any]) -> Trajectory:
        dialect = require_tags(self._environment.turn_dialect, "a file of ET-Agent")
        pieces = tokenise(one.text, dialect)
        calls = _calls(pieces, dialect, one.outcomes)
        transcript, num_turns = Transcript(dialect, self._tokenizer), 0
        for is_result, text in _spans(pieces, dialect):
            if is_result:
                transcript.append_block(text)
            else:
                transcript.insert(text)
                transcript.close_span()
                num_turns += 1
        messages = self._environment.first_messages(Task.from_row(question))
        prompt_ids = self._tokenizer.prompt_ids(messages) if self._tokenizer is not None else []
        return Trajectory(
            status=one.status,
            text=transcript.text,
            segments=transcript.segments(),
            samples=[Sample(prompt_ids, transcript.ids.tolist(), list(transcript.origins))],
            calls=calls,
            num_turns=num_turns,
            first_messages=tuple(messages),
        )


def _spans(pieces: Sequence[Segment], dialect: TagDialect) -> Iterator[tuple[bool, str]]:
    """Yield (True for a result, text) for each span: model text up to and including a call, and results.

    White space between a call and its result belongs to the result, as in the reinforcement learning of ET-Agent.
    """
    written = ""
    for piece in pieces:
        if piece.kind == RESULT:
            space = written if written.isspace() else ""
            if written and not space:
                yield False, written
            yield True, space + piece.text
            written = ""
            continue
        written += piece.text
        if dialect.is_call(piece):
            yield False, written
            written = ""
    if written:
        yield False, written


def _calls(
    pieces: Sequence[Segment], dialect: TagDialect, stated: tuple[tuple[str, str], ...] | None
) -> list[CallRecord]:
    """Return the calls with their status: as stated by the file, else inferred from the result."""
    visible_pieces = [piece for piece in pieces if piece.kind != TEXT or not piece.text.isspace()]
    found: list[CallRecord] = []
    for place, piece in enumerate(visible_pieces):
        if not dialect.is_call(piece):
            continue
        (call,) = parse_calls(piece.text, len(found), "stop", dialect)
        after = visible_pieces[place + 1] if place + 1 < len(visible_pieces) else None
        tag = dialect.by_name[RESULT]
        text = None
        if after is not None and after.kind == RESULT:
            text = after.text.removeprefix(tag.opening).removesuffix(tag.closing).strip()
        status = "refused" if text is None else status_of_result(call.tool, text)
        found.append(CallRecord(call.tool, call.text, status, len(found), text or "", id=call.id))
    if stated is None:
        return found
    if [call.tool for call in found] != [tool for tool, _ in stated]:
        raise RowRejected(
            "counts_differ",
            f"tool_calls lists {len(stated)} calls, but the text {len(found)}, or others",
        )
    return [
        replace(call, status=status)  # type: ignore[arg-type]
        for call, (_, status) in zip(found, stated, strict=True)
    ]


def status_of_result(tool: str, text: str) -> OutcomeStatus:
    """Infer the status of a call from its result; text that merely mentions errors is not a failure."""
    if text in _STATUS_BY_TEXT:
        return _STATUS_BY_TEXT[text]
    if _NOT_RUN.fullmatch(text):
        return "refused"
    if text.startswith(_FAILURES):
        return "error"
    if tool != "python":
        return "ok"
    if text.startswith(_INVALID_PROGRAM):
        return "invalid"
    last = text.rsplit("\n", 1)[-1].strip()
    return "error" if text.startswith("Error: ") or last.startswith("[killed: ") or _RAISED.fullmatch(last) else "ok"


def _score(one: ImportTrajectory, domain: str) -> float | None:
    """Return the score in the file, else 1 or 0 by the verdict; None without a verdict, or in the domain `qa`.

    In `qa` a verdict does not determine the score.
    """
    if one.score is not None or one.correct is None:
        return one.score
    return None if domain == "qa" else float(one.correct)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
