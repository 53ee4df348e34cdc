"""Apply the quality gate to trajectories, each by the dialect of its environment, repaired if that is enabled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from treadle.agent.dialects.base import REASONING, TEXT, Dialect, Segment
from treadle.agent.dialects.tag_faults import format_faults
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.edit import visible_thoughts
from treadle.agent.trajectory import by_sample
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.datagen.sft_rows.encoding import IdColumns, Prompt, RowEncoder, Turns
from treadle.datagen.sft_rows.messages import messages_of
from treadle.datagen.sft_rows.quality import Candidate, reasons_against
from treadle.datagen.sft_rows.repairs import RepairedTurn, repair_turn
from treadle.datagen.sft_rows.row_environments import RowEnvironment, RowEnvironments
from treadle.datagen.sft_rows.settings import SftRowsOptions
from treadle.datagen.sft_rows.student import NotGivenBack, StudentEncoder
from treadle.datagen.texts.rules import Facts, Filters, Step, facts_of_rollout

REPAIRABLE = frozenset({"bad_start", "no_think", "think_unbalanced", "order"})
"""Reasons for rejection that a repair may remove; a repair is tried only if no other reason applies."""


@dataclass(frozen=True, slots=True)
class QualityGate:
    """The rules that decide whether a trajectory may become a row.

    Attributes:
        held_out: Keys of the questions whose trajectories must not become rows.
        prompt: Function that returns the prompt of a trajectory whose text is encoded with the rows' tokenizer.
        filters: Rules that choose among trajectories that pass.
        context_tokens: Context window of the model to train; None if it is not known.
    """

    options: SftRowsOptions
    environments: RowEnvironments
    encoder: RowEncoder
    held_out: Collection[str]
    prompt: Callable[[Mapping[str, Any]], Prompt]
    filters: Filters
    context_tokens: int | None = None

    def judge(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> tuple[Candidate, list[str]]:
        """Return the trajectory, repaired if that is enabled and possible, and its reasons for rejection."""
        environment = self.environments.of(row)
        segments, output, origins = self._written(row, ids, index)
        num_prompt = ids.num_prompt(index) if output else 0
        is_trimmed = ids.num_samples(index) > 1
        candidate = Candidate(
            status=row["status"],
            correct=row["correct"],
            segments=segments,
            calls=[(call["tool"], call["status"]) for call in orjson.loads(row["tool_calls"])],
            num_prompt_ids=num_prompt,
            num_output_ids=len(output),
            origins=origins,
            num_row_tokens=self.num_row_tokens(ids, index) if output else 0,
            truncated=row["truncated"],
            held_out=row["question_key"] in self.held_out,
            lost_contexts=is_trimmed and not output,
        )
        if is_trimmed:
            reasons = self._reasons(candidate, environment.dialect)
        else:
            candidate, reasons = self._repaired(candidate, output, environment)
        if not reasons:
            facts = facts_of(candidate.segments, row)
            reasons = self.filters.reasons(row["rollout_key"], facts, num_tokens=candidate.num_output_ids)
        if not reasons and self.environments.are_encoded_here(row):
            return self._fitted(candidate, row, ids, index)
        return candidate, reasons

    def num_row_tokens(self, ids: IdColumns, index: int) -> int:
        """Return the length of the longest row that a trajectory would become; 0 in text mode."""
        num_samples = ids.num_samples(index)
        return max(
            (
                self.encoder.num_tokens(
                    ids.num_prompt(index, sample),
                    ids.output(index, sample),
                    ids.origins(index, sample),
                    is_last=sample + 1 == num_samples,
                )
                for sample in range(num_samples)
            ),
            default=0,
        )

    def num_copies(self, row: Mapping[str, Any]) -> int:
        """Return how often each row of an accepted trajectory is written."""
        if self.options.filters.corrected_copies == 1:
            return 1
        return self.filters.num_copies(facts_of(_segments(row["segments"]), row))

    def _written(
        self, row: Mapping[str, Any], ids: IdColumns, index: int
    ) -> tuple[Sequence[Segment], list[int], bytes]:
        """Return segments, ids after the prompt and their origins; no ids unless they are of the rows' tokenizer.

        If the trajectory has several samples, they are joined.
        """
        segments = _segments(row["segments"])
        if not self.environments.are_encoded_here(row):
            if (num_samples := ids.num_samples(index)) < 2:
                return segments, ids.output(index), ids.origins(index)
            outputs = [ids.output(index, sample) for sample in range(num_samples)]
            origins = [ids.origins(index, sample) for sample in range(num_samples)]
            return joined(by_sample(segments)), list(itertools.chain(*outputs)), b"".join(origins)
        plain = [replace(segment, start=0, end=0) for segment in segments]
        return visible_thoughts(plain, self.environments.of(row).dialect), [], b""

    def _repaired(
        self, candidate: Candidate, output: Sequence[int], environment: RowEnvironment
    ) -> tuple[Candidate, list[str]]:
        """Return the candidate, repaired if that is enabled and possible, and its reasons."""
        reasons = self._reasons(candidate, environment.dialect)
        tags = self._repaired_tags(environment)
        if tags is None or not reasons or not REPAIRABLE.issuperset(reasons):
            return candidate, reasons
        repaired_turn = self._repair(candidate.segments, output, candidate.origins, tags)
        if repaired_turn is None:
            return candidate, reasons
        origins = bytes(repaired_turn.origins)
        other = replace(
            candidate,
            segments=repaired_turn.segments,
            num_output_ids=len(repaired_turn.ids),
            origins=origins,
            num_row_tokens=self.encoder.num_tokens(candidate.num_prompt_ids, repaired_turn.ids, origins),
        )
        return other, self._reasons(other, environment.dialect)

    def _repair(
        self, segments: Sequence[Segment], output: Sequence[int], origins: bytes, tags: TagDialect
    ) -> RepairedTurn | None:
        return repair_turn(segments, output, origins, self.environments.tokenizer if output else None, tags)

    def _fitted(
        self, candidate: Candidate, row: Mapping[str, Any], ids: IdColumns, index: int
    ) -> tuple[Candidate, list[str]]:
        """Return an accepted trajectory with its length in the rows' tokenizer, and reasons against its row.

        The reasons are those that only the encoded text shows: its length, or that the tokenizer changes it.
        """
        try:
            turns, _ = self.turns(row, ids, index)
        except NotGivenBack:
            return candidate, ["not_given_back"]
        length = self.encoder.num_tokens_of(self.prompt(row), turns)
        most = self.options.filters.max_text_tokens
        reasons = ["too_many_tokens"] if most is not None and len(turns.ids) > most else []
        reasons += ["too_long"] if length > self.options.cutoff_tokens else []
        if self.context_tokens is not None and length > self.context_tokens:
            reasons.append("over_context")
        return replace(candidate, num_row_tokens=length), reasons

    def _reasons(self, candidate: Candidate, dialect: Dialect) -> list[str]:
        return reasons_against(candidate, cutoff_tokens=self.options.cutoff_tokens, dialect=dialect)

    def _repaired_tags(self, environment: RowEnvironment) -> TagDialect | None:
        """Return the tag dialect by which an environment's trajectories are repaired; None if they are not repaired."""
        return environment.tags if self.options.repair else None

    def rows(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> tuple[list[Turns], bool]:
        """Return the turns of each row of an accepted trajectory, and whether they had to be repaired.

        A trajectory becomes one row, or one for each sample if its context was trimmed. Raises NotGivenBack; see
        `turns`.
        """
        num_samples = ids.num_samples(index)
        if num_samples < 2:
            turns, repaired = self.turns(row, ids, index)
            return [turns], repaired
        tokenizer, dialect = self.environments.tokenizer, self.environments.of(row).dialect
        assert tokenizer is not None
        found = []
        for sample, segments in enumerate(by_sample(_segments(row["segments"]))):
            made = Turns.of(segments, ids.output(index, sample), ids.origins(index, sample), dialect)
            carried = ids.carried(index, sample)
            if made.ids:
                found.append(made.after(carried, tokenizer.decode(carried), is_last=sample + 1 == num_samples))
        return found, False

    def turns(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> tuple[Turns, bool]:
        """Return the turns of an accepted trajectory of one sample, and whether they had to be repaired.

        Raises NotGivenBack if the rows' tokenizer encodes their text, and decoding does not give the same text.
        """
        environment = self.environments.of(row)
        segments, output, origins = self._written(row, ids, index)
        tags = self._repaired_tags(environment)
        repaired = tags is not None and bool(format_faults(segments, tags))
        if tags is not None and repaired:
            repaired_turn = self._repair(segments, output, origins, tags)
            assert repaired_turn is not None
            segments, output, origins = repaired_turn.segments, repaired_turn.ids, bytes(repaired_turn.origins)
        tokenizer = self.environments.tokenizer
        if tokenizer is not None and self.environments.are_encoded_here(row):
            messages = messages_of(segments, b"", environment.dialect)
            return StudentEncoder(tokenizer).turns(messages, environment.bound_dialect), repaired
        return Turns.of(segments, output, origins, environment.dialect), repaired


def facts_of(segments: Sequence[Segment], row: Mapping[str, Any]) -> Facts:
    """Return the facts about a trajectory that filters depend on; text outside of blocks is not a step."""
    steps = [Step(one.kind, one.text) for one in segments if one.kind not in SYSTEM_KINDS | {TEXT, REASONING}]
    calls = [(call["tool"], str(call["argument"]), call["turn"]) for call in orjson.loads(row["tool_calls"])]
    return facts_of_rollout(steps, calls)


def joined(groups: Sequence[Sequence[Segment]]) -> list[Segment]:
    """Return the segments of all samples, with the offsets of their joined ids."""
    found: list[Segment] = []
    for group in groups:
        start = found[-1].end if found else 0
        found += [replace(one, start=one.start + start, end=one.end + start) for one in group]
    return found


def _segments(text: str) -> list[Segment]:
    return [Segment(part["kind"], part["text"], part["start"], part["end"]) for part in orjson.loads(text)]
