"""Run the stage `sft_rows`: filter the trajectories of pools, or scored rollouts, and write shuffled fine-tuning rows.

It reads them twice: first to apply the quality gate to every trajectory, then to write the selected ones. Rows are
sorted through files, so memory does not grow with their texts and ids. Documented in docs/behaviour/sft_rows.md.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from treadle.agent.contract import TASK_COLUMNS
from treadle.core.errors import ArtifactError, StageFailed
from treadle.core.runs.stage import StageContext
from treadle.core.store.buckets import Buckets, bucket_count, draw
from treadle.datagen.sft_rows.encoding import IdColumns, Prompt, RowEncoder, Turns
from treadle.datagen.sft_rows.gate import QualityGate, facts_of
from treadle.datagen.sft_rows.report import ParentIndex, SftRowsTally, render_report
from treadle.datagen.sft_rows.row_environments import RowEnvironments
from treadle.datagen.sft_rows.selection import DECISIONS, ROW, Decisions, TrajectorySelector
from treadle.datagen.sft_rows.settings import SftRowsSettings
from treadle.datagen.sft_rows.tables import SFT_REJECTIONS, SFT_ROWS
from treadle.datagen.sft_rows.trajectories import QuestionReader, Trajectories
from treadle.datagen.texts.rules import Filters, copy_key
from treadle.environments.rollouts.rows import plain_schemas

_log = logging.getLogger(__name__)

_REJECTED = ("rollout_key", "question_key", "dataset", "domain", "operator", "round", "status", "calls_requested")
_DIGESTS = ("environment_digest", "tokenizer_digest")
_KEPT = ("environment", "first_messages", "tool_schemas")
_JUDGED = (*_REJECTED, *_KEPT, "tokenizer_digest", "truncated", "parents", "segments", "tool_calls")
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
    "tools",
    *_DIGESTS,
)
_CHUNK_ROWS = 256
_ROWS_PER_BUCKET = 1024


class _Selected(NamedTuple):
    """A selected trajectory in the form in which it is stored in a bucket."""

    head: dict[str, Any]
    environment: str
    repaired: bool
    first_messages: str
    """JSON, if they depend on the episode; else empty."""
    tool_schemas: str
    """JSON, as the rollout has them."""
    prompt_digest: str
    """Digest of the prompt that the rollout was sampled from; empty if the rows' tokenizer encodes its text."""
    turns: Turns


class _SftRowsRun:
    """State of one run of the stage."""

    def __init__(self, context: StageContext) -> None:
        settings: SftRowsSettings = context.settings
        self._context = context
        self._settings = settings
        self._options = settings.options
        self._trajectories = Trajectories(context.inputs)
        self._num_read = self._trajectories.num_rows
        self._environments = RowEnvironments(settings)
        self._encoder = RowEncoder.of(self._environments.tokenizer, mask_results=self._options.mask_results)
        self._questions = QuestionReader(context.inputs["questions"])
        self._gate = QualityGate(
            self._options,
            self._environments,
            self._encoder,
            self._trajectories.held_out(),
            self._prompt_of,
            Filters(settings.options.filters, settings.seed),
            settings.context_tokens,
        )
        self._last_prompt: tuple[tuple[str, ...], Prompt] | None = None
        self._rejections: list[dict[str, Any]] = []
        self.tally = SftRowsTally()

    def run(self) -> None:
        """Run both passes, sort the rows and write the report."""
        if not self._num_read:
            kind = self._trajectories.kind
            raise StageFailed(f"the {kind} have no trajectories; check the result of the stage `{kind}`")
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
                self.tally.num_rows,
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
            kinds = self._judge_all(selection)
            if not self.tally.num_accepted:
                counts = self.tally.reasons_in_words()
                raise StageFailed(f"none of the {self._num_read:,} trajectories passed the quality gate: {counts}")
            return selection.decisions().with_share(kinds, options.filters.parallel_share, self._settings.seed)

    def _judge_all(self, selection: TrajectorySelector) -> dict[int, tuple[str, bool]]:
        """Judge every trajectory; return number -> (key, whether several calls ran at once) of the accepted ones.

        The result is empty if `parallel_share` is not set.
        """
        number = 0
        kinds: dict[int, tuple[str, bool]] = {}
        for batches in self._trajectories.judged_batches([*_JUDGED, *IdColumns.NAMES, "environment_digest"]):
            parents = ParentIndex()
            for batch in batches:
                self._environments.check(batch, self._trajectories.kind)
                ids = IdColumns(batch)
                for index, row in enumerate(batch.select([*_JUDGED, "correct"]).to_pylist()):
                    candidate, reasons = self._gate.judge(row, ids, index)
                    self.tally.count_judged(row, reasons, parents.of(row))
                    parents.remember(row)
                    if reasons:
                        self._reject(row, reasons, candidate.num_row_tokens)
                    else:
                        stratum = (row["dataset"], row["operator"], row["calls_requested"])
                        text = "".join([segment.text for segment in candidate.segments])
                        selection.add(number, row["question_key"], row["rollout_key"], stratum, text)
                        if self._options.filters.parallel_share is not None:
                            kinds[number] = row["rollout_key"], facts_of(candidate.segments, row).is_parallel
                    number += 1
                self._end_batch(batch.num_rows)
        return kinds

    # Second pass: put rows into buckets by position, then the questions, then write each bucket.

    def _spread_rows(self, decisions: Decisions, buckets: Buckets) -> np.ndarray:
        """Put selected trajectories into their buckets.

        Returns unique pairs: the hash of a question, and a bucket with rows of that question.
        """
        questions, places = array("Q"), array("B")
        columns = [*dict.fromkeys((*_COPIED, *_REJECTED)), *_KEPT, "segments", "tool_calls", *IdColumns.NAMES]
        start = 0
        for batches in self._trajectories.batches(columns):
            for batch in batches:
                ids = IdColumns(batch)
                decided = list(decisions.between(start, start + batch.num_rows))
                taken = batch.drop_columns([*IdColumns.NAMES]).take(
                    pa.array([n - start for n, _ in decided], pa.int64())
                )
                for row, (number, code) in zip(taken.to_pylist(), decided, strict=True):
                    if code == ROW:
                        rows = self._selected(row, ids, number - start) * self._gate.num_copies(row)
                        for place_in_rows, selected in enumerate(rows):
                            key = copy_key(row["rollout_key"], place_in_rows)
                            place = draw(self._settings.seed, "order", key)
                            bucket = buckets.of(place)
                            questions.append(draw(0, row["question_key"]))
                            places.append(bucket)
                            of_copy = selected._replace(head={**selected.head, "rollout_key": key})
                            buckets.add(bucket, _line(place, of_copy))
                    else:
                        self._leave_out(row, DECISIONS[code], ids, number - start)
                start += batch.num_rows
                self._end_batch(batch.num_rows)
        wanted = np.empty(len(places), [("question", np.uint64), ("bucket", np.uint8)])
        wanted["question"], wanted["bucket"] = questions, places
        return np.unique(wanted)

    def _selected(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> list[_Selected]:
        """Return the rows of a trajectory."""
        rows, repaired = self._gate.rows(row, ids, index)
        head, prompt_digest = {name: row[name] for name in _COPIED}, ids.prompt_digest(index)
        if self._environments.are_encoded_here(row):
            assert self._environments.tokenizer is not None
            head["tokenizer_digest"], prompt_digest = self._environments.tokenizer.digest, ""
        return [
            _Selected(
                head=head,
                environment=row["environment"],
                repaired=repaired,
                first_messages=self._first_messages(row),
                tool_schemas=row["tool_schemas"],
                prompt_digest=prompt_digest,
                turns=turns,
            )
            for turns in rows
        ]

    def _first_messages(self, row: Mapping[str, Any]) -> str:
        """Return the first messages as JSON if they depend on the episode; empty if the question alone decides them."""
        return "" if self._environments.of(row).rebuilds_prompts else row["first_messages"] or ""

    def _prompt_of(self, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a trajectory in the first pass, in which questions are read in their order."""
        head = {name: row[name] for name in ("question_key", "rollout_key")}
        asked = (row["environment"], self._first_messages(row), row["tool_schemas"])
        key = (row["question_key"], *asked)
        if self._last_prompt is None or self._last_prompt[0] != key:
            self._last_prompt = (key, self._prompt(self._questions[row["question_key"]], head, *asked))
        return self._last_prompt[1]

    def _leave_out(self, row: Mapping[str, Any], why: str, ids: IdColumns, index: int) -> None:
        self.tally.left_out[why] += 1
        self._reject(row, [why], self._gate.num_row_tokens(ids, index))

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
            prompts: dict[tuple[str, str, str], Prompt] = {}
            for line in sorted(lines):
                *parts, turns = orjson.loads(line[line.index(b" ") + 1 :])
                selected = _Selected._make([*parts, Turns(**turns)])
                key = (selected.head["question_key"], selected.first_messages, selected.tool_schemas)
                if key not in prompts:
                    prompts[key] = self._prompt(
                        questions.get(key[0]),
                        selected.head,
                        selected.environment,
                        selected.first_messages,
                        selected.tool_schemas,
                    )
                row = self._finished(selected, prompts[key])
                self.tally.count_row(row)
                chunk.append(row)
                if len(chunk) == _CHUNK_ROWS:
                    self._context.write(SFT_ROWS.kind, chunk)
                    chunk = []
        self._context.write(SFT_ROWS.kind, chunk)

    def _prompt(
        self,
        question: Mapping[str, Any] | None,
        head: Mapping[str, Any],
        environment: str,
        first_messages: str,
        tool_schemas: str,
    ) -> Prompt:
        """Return the prompt of a trajectory; raise ArtifactError if its question was not found."""
        if question is None:
            raise ArtifactError(
                f"trajectories answer question {head['question_key']}, which is not among the questions read; "
                f"bind the questions that the {self._trajectories.kind} were made from"
            )
        return self._environments.prompt(environment, question, head["rollout_key"], first_messages, tool_schemas)

    def _finished(self, selected: _Selected, prompt: Prompt) -> dict[str, Any]:
        """Return the row; raise StageFailed if the rollout's prompt differs from the environment's."""
        turns = selected.turns
        if turns.ids and selected.prompt_digest not in ("", prompt.digest):
            raise StageFailed(
                f"the prompt of trajectory {selected.head['rollout_key']} has other token ids than that of its "
                f"question {selected.head['question_key']} in this environment with this tokenizer; run "
                f"`{self._trajectories.kind}` again"
            )
        return {
            **selected.head,
            "repaired": selected.repaired,
            "messages": orjson.dumps([*prompt.messages, *turns.messages]).decode(),
            "tool_schemas": plain_schemas(selected.tool_schemas),
            **self._encoder.columns(prompt.ids, turns),
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


def _line(place: int, selected: _Selected) -> bytes:
    """Return a selected trajectory as a line; lines sort by `place`, then by the trajectory's key."""
    return f"{place:016x}{selected.head['rollout_key']} ".encode() + orjson.dumps(list(selected))
