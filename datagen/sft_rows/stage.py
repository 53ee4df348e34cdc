"""Run the stage `sft_rows`: filter the trajectories of pools and write shuffled fine-tuning rows.

It reads the pools twice: first to apply the quality gate to every trajectory, then to write the selected ones. Rows are
sorted through files, so memory does not grow with their texts and ids. Documented in docs/behaviour/sft_rows.md.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from treadle.agent.contract import TASK_COLUMNS, Task
from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.tag_faults import format_faults
from treadle.agent.dialects.tags import TagDialect
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import EMBEDDED
from treadle.core.engines.serving import embedded_folder
from treadle.core.errors import ArtifactError, ConfigError, StageFailed
from treadle.core.runs.stage import Stage, StageContext
from treadle.core.schemas import SFT_REJECTIONS, SFT_ROWS
from treadle.core.store.buckets import Buckets, bucket_count, draw
from treadle.datagen.pools.quality import Candidate, num_tokens, reasons_against
from treadle.datagen.pools.repairs import repair_turn
from treadle.datagen.sft_rows.encoding import IdColumns, Prompt, id_columns, num_generated, result_spans
from treadle.datagen.sft_rows.report import ParentIndex, SftRowsTally, render_report
from treadle.datagen.sft_rows.selection import DECISIONS, ROW, Decisions, TrajectorySelector
from treadle.datagen.sft_rows.settings import SftRowsSettings
from treadle.environments.opening import shown_messages

_log = logging.getLogger(__name__)

REPAIRABLE = frozenset({"bad_start", "no_think", "think_unbalanced", "order"})
"""Reasons that a repair may remove; it is tried only if no other reason applies."""

_REJECTED = ("rollout_key", "question_key", "dataset", "domain", "operator", "round", "status", "calls_requested")
_JUDGED = (*_REJECTED, "parents", "correct", "segments", "tool_calls")
_DIGESTS = ("environment_digest", "tokenizer_digest")
_COPIED = (
    "rollout_key",
    "question_key",
    "dataset",
    "domain",
    "model",
    "operator",
    "parents",
    "round",
    "calls_requested",
    "calls_executed",
    "python_calls",
    "search_calls",
    *_DIGESTS,
)
_CHUNK_ROWS = 256
_ROWS_PER_BUCKET = 1024


class _Selected(NamedTuple):
    """A selected trajectory in the form in which it is stored in a bucket."""

    head: dict[str, Any]
    repaired: bool
    assistant: str
    prompt_digest: str
    output_ids: list[int]
    results: Sequence[Sequence[int]]


class _SftRowsRun:
    """State of one run of the stage."""

    def __init__(self, context: StageContext) -> None:
        settings: SftRowsSettings = context.settings
        self._context = context
        self._settings = settings
        self._options = settings.options
        self._pools = context.inputs["pools"]
        self._num_read = sum(table.num_rows for table in self._pools)
        self._environment_digests = settings.environment.digests()
        self._dialect = settings.environment.dialect
        # Only tags can be repaired.
        tags = self._dialect if isinstance(self._dialect, TagDialect) else None
        self._repaired_tags = tags if self._options.repair else None
        self._tokenizer = tokenizer = _load_tokenizer(settings)
        self._turn_end = tokenizer.turn_end_ids if tokenizer else ()
        self._num_generated = num_generated(self._turn_end, tokenizer.eos_ids) if tokenizer else 0
        self._rejections: list[dict[str, Any]] = []
        self.tally = SftRowsTally()

    def run(self) -> None:
        """Run both passes, sort the rows and write the report."""
        if not self._num_read:
            raise StageFailed("the pools have no trajectories; check the result of the stage `pools`")
        self._context.progress.start(2 * self._num_read, 0, "trajectories")
        decisions = self._select()
        num_rows = int((decisions.codes == ROW).sum())
        buckets = Buckets(self._context.scratch / "rows", bucket_count(num_rows, _ROWS_PER_BUCKET))
        asked = Buckets(self._context.scratch / "asked", buckets.count)
        with buckets, asked:
            self._spread_questions(self._spread_rows(decisions, buckets), asked)
            self._write_sorted(buckets, asked)
        if self.tally.num_text_mode:
            _log.warning(
                "%d of %d rows have no token ids, because their trajectories were made in text mode: they can be "
                "exported as text, but `sft` cannot train on them",
                self.tally.num_text_mode,
                num_rows,
            )
        self._context.add_file(SFT_ROWS.kind, "report.md", render_report(self.tally).encode())

    # First pass: apply the quality gate, then select.

    def _select(self) -> Decisions:
        """Return the decision of each accepted trajectory; raise StageFailed if there is none."""
        options = self._options
        selection = TrajectorySelector(
            self._context.scratch / "questions",
            self._num_read,
            seed=self._settings.seed,
            near_duplicate=options.near_duplicate,
            max_per_question=options.max_per_question,
            max_rows=options.max_rows,
        )
        with selection:
            self._judge_all(selection)
            if not self.tally.num_accepted:
                counts = self.tally.reasons_in_words()
                raise StageFailed(f"none of the {self._num_read:,} trajectories passed the quality gate: {counts}")
            return selection.decisions()

    def _judge_all(self, selection: TrajectorySelector) -> None:
        number = 0
        for table in self._pools:
            parents = ParentIndex()
            for batch in table.batches([*_JUDGED, *IdColumns.NAMES, *_DIGESTS]):
                self._check_digests(batch)
                ids = IdColumns(batch)
                for index, row in enumerate(batch.select(_JUDGED).to_pylist()):
                    candidate, reasons = self._judge(row, ids, index)
                    self.tally.count_judged(row, reasons, parents.of(row))
                    parents.remember(row)
                    if reasons:
                        self._reject(row, reasons, num_tokens(candidate, len(self._turn_end)))
                    else:
                        stratum = (row["dataset"], row["operator"], row["calls_requested"])
                        text = "".join([segment.text for segment in candidate.segments])
                        selection.add(number, row["question_key"], row["rollout_key"], stratum, text)
                    number += 1
                self._end_batch(batch.num_rows)

    def _judge(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> tuple[Candidate, list[str]]:
        """Return the trajectory, repaired if that is enabled and possible, and its reasons for rejection."""
        candidate = Candidate(
            status=row["status"],
            correct=row["correct"],
            segments=_segments(row["segments"]),
            calls=[(call["tool"], call["status"]) for call in orjson.loads(row["tool_calls"])],
            num_prompt_ids=ids.num_prompt(index),
            num_output_ids=ids.num_output(index),
            origins=ids.origins(index),
        )
        reasons = self._reasons(candidate)
        if self._repaired_tags is None or not reasons or not REPAIRABLE.issuperset(reasons):
            return candidate, reasons
        repaired_turn = repair_turn(
            candidate.segments, ids.output(index), candidate.origins, self._tokenizer, self._repaired_tags
        )
        if repaired_turn is None:
            return candidate, reasons
        other = replace(
            candidate,
            segments=repaired_turn.segments,
            num_output_ids=len(repaired_turn.ids),
            origins=bytes(repaired_turn.origins),
        )
        return other, self._reasons(other)

    def _reasons(self, candidate: Candidate) -> list[str]:
        return reasons_against(
            candidate,
            cutoff_tokens=self._options.cutoff_tokens,
            num_end_ids=len(self._turn_end),
            dialect=self._dialect,
        )

    def _check_digests(self, batch: pa.RecordBatch) -> None:
        """Raise StageFailed if trajectories were made in another environment or with another tokenizer."""
        for digest in batch.column("environment_digest").unique().to_pylist():
            if digest not in self._environment_digests:
                raise StageFailed(
                    f"trajectories were made in environment {digest[:12]}, but the configuration describes "
                    f"{self._environment_digests.plain[:12]}: another prompt, other tools or limits; run `pools` "
                    "again, or restore the [environment] that it was run with"
                )
        for digest in batch.column("tokenizer_digest").unique().to_pylist():
            if digest and self._tokenizer is None:
                raise ConfigError(
                    "trajectories have token ids, but the policy has no tokenizer here; set `tokenizer` of the "
                    "policy's model to its folder"
                )
            if digest and self._tokenizer is not None and digest != self._tokenizer.digest:
                raise StageFailed(
                    f"trajectories were made with tokenizer {digest[:12]}, but the policy's in "
                    f"{self._tokenizer.folder} is {self._tokenizer.digest[:12]}; set the tokenizer that `pools` used"
                )

    # Second pass: put rows into buckets by position, then the questions, then write each bucket.

    def _spread_rows(self, decisions: Decisions, buckets: Buckets) -> np.ndarray:
        """Put selected trajectories into their buckets.

        Returns the unique pairs of a question and a bucket that needs it.
        """
        questions, places = array("Q"), array("B")
        columns = [*dict.fromkeys((*_COPIED, *_REJECTED)), "text", *IdColumns.NAMES]
        if self._repaired_tags is not None:
            columns.append("segments")
        start = 0
        for table in self._pools:
            for batch in table.batches(columns):
                ids = IdColumns(batch)
                decided = list(decisions.between(start, start + batch.num_rows))
                taken = batch.drop_columns([*IdColumns.NAMES]).take(
                    pa.array([n - start for n, _ in decided], pa.int64())
                )
                for row, (number, code) in zip(taken.to_pylist(), decided, strict=True):
                    if code == ROW:
                        place = draw(self._settings.seed, "order", row["rollout_key"])
                        bucket = buckets.of(place)
                        questions.append(draw(0, row["question_key"]))
                        places.append(bucket)
                        buckets.add(bucket, _line(place, self._selected(row, ids, number - start)))
                    else:
                        self._leave_out(row, DECISIONS[code], ids, number - start)
                start += batch.num_rows
                self._end_batch(batch.num_rows)
        wanted = np.empty(len(places), [("question", np.uint64), ("bucket", np.uint8)])
        wanted["question"], wanted["bucket"] = questions, places
        return np.unique(wanted)

    def _selected(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> _Selected:
        text, output, origins, repaired = row["text"], ids.output(index), ids.origins(index), False
        if self._repaired_tags is not None:
            segments = _segments(row["segments"])
            if format_faults(segments, self._repaired_tags):
                repaired_turn = repair_turn(segments, output, origins, self._tokenizer, self._repaired_tags)
                assert repaired_turn is not None
                text, output, origins, repaired = (
                    repaired_turn.text,
                    repaired_turn.ids,
                    bytes(repaired_turn.origins),
                    True,
                )
        head = {name: row[name] for name in _COPIED}
        return _Selected(head, repaired, text, ids.prompt_digest(index), output, result_spans(origins))

    def _leave_out(self, row: Mapping[str, Any], why: str, ids: IdColumns, index: int) -> None:
        self.tally.left_out[why] += 1
        length = ids.num_output(index)
        self._reject(row, [why], ids.num_prompt(index) + length + len(self._turn_end) if length else 0)

    def _spread_questions(self, wanted: np.ndarray, asked: Buckets) -> None:
        for table in self._context.inputs["questions"]:
            for row in table.rows(TASK_COLUMNS):
                number = np.uint64(draw(0, row["question_key"]))
                low, high = (int(np.searchsorted(wanted["question"], number, side)) for side in ("left", "right"))
                if low < high:
                    line = orjson.dumps(row)
                    for bucket in wanted["bucket"][low:high].tolist():
                        asked.add(bucket, line)

    def _write_sorted(self, buckets: Buckets, asked: Buckets) -> None:
        chunk: list[dict[str, Any]] = []
        for index, lines in enumerate(buckets):
            questions = {row["question_key"]: row for row in map(orjson.loads, asked.lines(index))}
            prompts: dict[str, Prompt] = {}
            for line in sorted(lines):
                selected = _Selected(*orjson.loads(line[line.index(b" ") + 1 :]))
                key = selected.head["question_key"]
                if key not in prompts:
                    prompts[key] = self._prompt(questions.get(key), key)
                row = self._finished(selected, prompts[key])
                self.tally.count_row(row)
                chunk.append(row)
                if len(chunk) == _CHUNK_ROWS:
                    self._context.write(SFT_ROWS.kind, chunk)
                    chunk = []
        self._context.write(SFT_ROWS.kind, chunk)

    def _prompt(self, question: Mapping[str, Any] | None, key: str) -> Prompt:
        if question is None:
            raise ArtifactError(
                f"trajectories answer question {key}, which is not among the questions read; bind the questions that "
                "the pools were made from"
            )
        return Prompt.of(shown_messages(self._settings.environment, Task.from_row(question)), self._tokenizer)

    def _finished(self, selected: _Selected, prompt: Prompt) -> dict[str, Any]:
        """Return the row; raise StageFailed if the rollout's prompt differs from the environment's."""
        has_ids = bool(selected.output_ids)
        if has_ids and selected.prompt_digest != prompt.digest:
            raise StageFailed(
                f"the prompt of trajectory {selected.head['rollout_key']} has other token ids than that of its "
                f"question {selected.head['question_key']} in this environment with this tokenizer; run `pools` again"
            )
        masked = selected.results if self._options.mask_results else ()
        return {
            **selected.head,
            "repaired": selected.repaired,
            "system": prompt.system,
            "user": prompt.user,
            "assistant": selected.assistant,
            "num_result_tokens": sum(stop - start for start, stop in selected.results),
            **(
                id_columns(prompt.ids, selected.output_ids, masked, self._turn_end, self._num_generated)
                if has_ids
                else id_columns((), (), (), (), 0)
            ),
        }

    def _reject(self, row: Mapping[str, Any], reasons: Sequence[str], length: int) -> None:
        rejection = {name: row[name] for name in _REJECTED}
        self._rejections.append({**rejection, "num_tokens": length, "reason": reasons[0], "reasons": list(reasons)})

    def _end_batch(self, num_rows: int) -> None:
        self._context.write(SFT_REJECTIONS.kind, self._rejections)
        self._rejections = []
        self._context.progress.advance(num_rows, accepted=self.tally.num_accepted)


def run_sft_rows(context: StageContext) -> Mapping[str, Any]:
    """Filter and select trajectories, write the rows and return counts.

    Raises StageFailed if no trajectory is accepted, or if they were made in another environment or with another
    tokenizer.
    """
    stage_run = _SftRowsRun(context)
    stage_run.run()
    return stage_run.tally.metrics()


def _load_tokenizer(settings: SftRowsSettings) -> ChatTokenizer | None:
    if settings.tokenizer is None:
        return None
    folder = embedded_folder("tokenizer") if settings.tokenizer == Path(EMBEDDED) else settings.tokenizer
    tokenizer = ChatTokenizer.load(folder)
    if settings.tokenizer_digest not in ("", tokenizer.digest):
        raise ConfigError(
            f"the tokenizer in {settings.tokenizer} is not the one that this run was made with; restore its files, or "
            "start a new run"
        )
    return tokenizer


def _segments(text: str) -> list[Segment]:
    return [Segment(part["kind"], part["text"], part["start"], part["end"]) for part in orjson.loads(text)]


def _line(place: int, selected: _Selected) -> bytes:
    """Return a line that sorts by place, then by key."""
    return f"{place:016x}{selected.head['rollout_key']} ".encode() + orjson.dumps(list(selected))


SFT_ROWS_STAGE = Stage(
    name="sft_rows",
    version=1,
    settings=SftRowsSettings,
    consumes={"pools": "pools", "questions": "questions"},
    produces=(SFT_ROWS, SFT_REJECTIONS),
    run=run_sft_rows,
)
