"""Make fine-tuning rows from whole texts: trajectories of files, or those that the stage `conversion` has rewritten.

A text is encoded as a whole and its observations are masked (`datagen/texts/masks.py`). As for other trajectories there
are two passes: first to apply the rules and select, then to write. Documented in docs/behaviour/sft_rows.md.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from treadle.core.errors import StageFailed
from treadle.core.runs.stage import StageContext
from treadle.core.store.buckets import Buckets, bucket_count, draw
from treadle.datagen.conversion.converted import read_conversions
from treadle.datagen.sft_rows.encoding import RowEncoder, Turns
from treadle.datagen.sft_rows.report import SftRowsTally, render_report
from treadle.datagen.sft_rows.row_environments import load_row_tokenizer
from treadle.datagen.sft_rows.selection import DECISIONS, ROW, TrajectorySelector
from treadle.datagen.sft_rows.settings import SftRowsSettings
from treadle.datagen.sft_rows.tables import SFT_REJECTIONS, SFT_ROWS
from treadle.datagen.texts.examined import Examined
from treadle.datagen.texts.files import WholeText, read_texts
from treadle.datagen.texts.masks import mask_text
from treadle.datagen.texts.rules import Facts, Filters, copy_key
from treadle.datagen.texts.spans import names_tag, tag_spans

_CHUNK_ROWS = 256
_ROWS_PER_BUCKET = 1024


class TextRowsRun:
    """State of one run of the stage over whole texts."""

    def __init__(self, context: StageContext) -> None:
        settings: SftRowsSettings = context.settings
        self._context = context
        self._settings = settings
        self._options = settings.options
        self._tokenizer = load_row_tokenizer(settings)
        self._encoder = RowEncoder.of(self._tokenizer, mask_results=self._options.mask_results)
        self._filters = Filters(self._options.filters, settings.seed)
        self._rejections: list[dict[str, Any]] = []
        self.tally = SftRowsTally()

    def run(self) -> None:
        """Run both passes, sort the rows and write the report."""
        self._num_read = sum(1 for _ in self._texts())
        if not self._num_read:
            raise StageFailed("the rewrites have no trajectories; check the result of the stage `conversion`")
        self._context.progress.start(2 * self._num_read, 0, "trajectories")
        decisions = self._select()
        buckets = Buckets(self._context.scratch / "rows", bucket_count(self.tally.num_accepted, _ROWS_PER_BUCKET))
        with buckets:
            for number, text in enumerate(self._texts()):
                decision = decisions.get(number)
                if decision == DECISIONS[ROW]:
                    self._add_rows(text, buckets)
                elif decision is not None:
                    self.tally.left_out[decision] += 1
                    self._reject(text, [decision], Examined.of(text).facts)
                self._advance()
            self._write_sorted(buckets)
        self._context.write(SFT_REJECTIONS.kind, self._rejections)
        self._context.add_file(SFT_ROWS.kind, "report.md", render_report(self.tally).encode())

    def _texts(self) -> Iterator[WholeText]:
        if self._options.trajectories == "texts":
            return read_texts(self._options.texts)
        return read_conversions(self._context.inputs["conversion"], with_sources=self._options.with_conversion_sources)

    # First pass: apply the rules, then select.

    def _select(self) -> dict[int, str]:
        """Return the decision of each accepted text by its number; raise StageFailed if there is none."""
        options = self._options
        selection = TrajectorySelector(
            self._context.scratch / "questions",
            self._num_read,
            seed=self._settings.seed,
            near_duplicate=options.near_duplicate,
            max_per_question=options.max_per_question,
            max_rows=options.max_rows,
        )
        kinds: dict[int, tuple[str, bool]] = {}
        with selection:
            for number, text in enumerate(self._texts()):
                facts, reasons = self._judge(text)
                self.tally.count_judged(_head(text, facts), reasons, None)
                if reasons:
                    self._reject(text, reasons, facts)
                else:
                    kinds[number] = text.key, facts.is_parallel
                    stratum = (text.dataset, text.operator, facts.num_calls)
                    selection.add(number, text.question_key, text.key, stratum, text.text)
                self._advance()
            if not kinds:
                counts = self.tally.reasons_in_words()
                raise StageFailed(f"none of the {self._num_read:,} trajectories passed the quality gate: {counts}")
            decided = selection.decisions()
        decided = decided.with_share(kinds, options.filters.parallel_share, self._settings.seed)
        return {number: DECISIONS[code] for number, code in decided.between(0, self._num_read)}

    def _judge(self, text: WholeText) -> tuple[Facts, list[str]]:
        """Return the facts about a text and the reasons against its row.

        Raises StageFailed if results are to have no loss and the text names their tag, but no token would be masked:
        results would then be trained on.
        """
        names = not text.reason and names_tag(text.text, text.tag)
        if self._options.mask_results and names and not tag_spans(text.text, text.tag):
            raise StageFailed(
                f"{text.where}: the text has the tag {text.tag!r}, but no token of it would be masked; write its "
                f"markers as <{text.tag}> and </{text.tag}>, or set `tag` of the source to the tag around results"
            )
        found = Examined.of(text)
        return found.facts, [found.fault] if found.fault else self._rule_reasons(text, found)

    def _rule_reasons(self, text: WholeText, found: Examined) -> list[str]:
        if self._tokenizer is None:
            return self._filters.reasons(text.key, found.facts, violations=found.violations)
        ids = mask_text(text.text.rstrip(), self._tokenizer, text.tag).ids
        reasons = self._filters.reasons(text.key, found.facts, num_tokens=len(ids), violations=found.violations)
        if not _is_given_back(text.text.rstrip(), self._tokenizer.decode(ids)):
            reasons.append("not_given_back")
        num_prompt = len(self._tokenizer.prompt_ids(text.messages))
        length = num_prompt + len(ids) + len(self._encoder.end_after(ids[-1]))
        cuts = self._options.texts_over_cutoff == "cut"
        limit = self._options.cutoff_tokens
        if length > limit and (not cuts or num_prompt >= limit):
            reasons.append("too_long")
        window = self._settings.context_tokens
        if window is not None and (min(length, limit) if cuts else length) > window:
            reasons.append("over_context")
        return reasons

    # Second pass: put rows into buckets by position, then write each bucket.

    def _add_rows(self, text: WholeText, buckets: Buckets) -> None:
        """Encode an accepted text and put its rows into the buckets of their positions in the shuffled order."""
        facts = Examined.of(text).facts
        columns = self._columns(text)
        for copy in range(self._filters.num_copies(facts)):
            key = copy_key(text.key, copy)
            place = draw(self._settings.seed, "order", key)
            row = {**_head(text, facts), "rollout_key": key, "repaired": False, "tool_schemas": "[]", **columns}
            buckets.add(buckets.of(place), f"{place:016x}{key} ".encode() + orjson.dumps(row))

    def _columns(self, text: WholeText) -> dict[str, Any]:
        """Return messages, ids and labels of a row."""
        said = text.text.rstrip()
        if self._tokenizer is None:
            turns = Turns([_turn(said, text.tag)], [], [], [])
            columns = self._encoder.columns([], turns)
            return {"messages": _json([*text.messages, *turns.messages]), "tokenizer_digest": "", **columns}
        prompt, encoder = self._tokenizer.prompt_ids(text.messages), self._encoder
        masked = mask_text(said, self._tokenizer, text.tag)
        limit = self._options.cutoff_tokens
        if len(prompt) + len(masked.ids) + len(encoder.end_after(masked.ids[-1])) > limit:
            # The model must not learn to stop here, so no end of turn follows.
            masked, encoder = masked.cut(limit - len(prompt)), replace(encoder, turn_end=())
            said = self._tokenizer.decode(masked.ids)
        turns = Turns([_turn(said, text.tag)], masked.ids, masked.masked, masked.masked)
        return {
            "messages": _json([*text.messages, *turns.messages]),
            "tokenizer_digest": self._tokenizer.digest,
            **encoder.columns(prompt, turns),
        }

    def _write_sorted(self, buckets: Buckets) -> None:
        chunk: list[dict[str, Any]] = []
        for lines in buckets:
            for line in sorted(lines):
                row = orjson.loads(line[line.index(b" ") + 1 :])
                self.tally.count_row(row)
                chunk.append({name: row[name] for name in SFT_ROWS.schema.names})
                if len(chunk) == _CHUNK_ROWS:
                    self._context.write(SFT_ROWS.kind, chunk)
                    chunk = []
        self._context.write(SFT_ROWS.kind, chunk)

    def _reject(self, text: WholeText, reasons: Sequence[str], facts: Facts) -> None:
        head = _head(text, facts)
        self._rejections.append(
            {
                **{name: head[name] for name in SFT_REJECTIONS.schema.names if name in head},
                "status": "text",
                "num_tokens": 0,
                "reason": reasons[0],
                "reasons": list(reasons),
            }
        )

    def _advance(self) -> None:
        if len(self._rejections) >= _CHUNK_ROWS:
            self._context.write(SFT_REJECTIONS.kind, self._rejections)
            self._rejections = []
        self._context.progress.advance(1, accepted=self.tally.num_accepted)


def run_text_rows(context: StageContext) -> Mapping[str, Any]:
    """Filter and select whole texts, write their rows and return counts.

    Raises StageFailed if no text is accepted, or if one has the tag of results and no masked token.
    """
    stage_run = TextRowsRun(context)
    stage_run.run()
    return stage_run.tally.metrics()


def _turn(said: str, tag: str) -> dict[str, Any]:
    """Return the only turn of a row, with start and end of each tool result in characters."""
    spans = [list(span) for span in tag_spans(said, tag)]
    return {"role": "assistant", "content": said, **({"results": spans} if spans else {})}


def _head(text: WholeText, facts: Facts) -> dict[str, Any]:
    """Return the columns that do not depend on a tokenizer."""
    return {
        "rollout_key": text.key,
        "question_key": text.question_key,
        "dataset": text.dataset,
        "domain": text.domain,
        "model": text.model,
        "operator": text.operator,
        "parents": list(text.parents),
        "round": 0,
        "calls_requested": facts.num_calls,
        "calls_executed": facts.num_calls,
        "tools": [
            {"tool": tool, "requested": count, "executed": count, "failed": 0}
            for tool, count in sorted(facts.calls.items())
        ],
        "environment_digest": "",
    }


def _json(messages: Sequence[Mapping[str, Any]]) -> str:
    return orjson.dumps(messages).decode()


def _is_given_back(text: str, decoded: str) -> bool:
    """Return whether `decoded` is the same text, up to the composition of characters (NFC) by tokenizers."""
    return decoded == text or unicodedata.normalize("NFC", text) == unicodedata.normalize("NFC", decoded)
