"""Apply the quality gate to trajectories, each by the dialect of its environment, repaired if that is enabled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from treadle.agent.dialects.base import REASONING, TEXT, Dialect, Segment
from treadle.agent.dialects.tag_faults import format_faults
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.edit import visible_thoughts
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
"""Reasons that a repair may remove; it is tried only if no other reason applies."""


@dataclass(frozen=True, slots=True)
class QualityGate:
    """The rules that decide whether a trajectory may become a row.

    Attributes:
        held_out: Keys of the questions whose trajectories may not.
        prompt: Function that returns the prompt of a trajectory which is encoded here.
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
        candidate = Candidate(
            status=row["status"],
            correct=row["correct"],
            segments=segments,
            calls=[(call["tool"], call["status"]) for call in orjson.loads(row["tool_calls"])],
            num_prompt_ids=num_prompt,
            num_output_ids=len(output),
            origins=origins,
            num_row_tokens=self.encoder.num_tokens(num_prompt, output, origins),
            truncated=row["truncated"],
            held_out=row["question_key"] in self.held_out,
        )
        candidate, reasons = self._repaired(candidate, output, environment)
        if not reasons:
            reasons = self.filters.reasons(row["rollout_key"], _facts(candidate.segments, row))
        if not reasons and self.environments.are_encoded_here(row):
            return self._fitted(candidate, row, ids, index)
        return candidate, reasons

    def _written(
        self, row: Mapping[str, Any], ids: IdColumns, index: int
    ) -> tuple[Sequence[Segment], list[int], bytes]:
        """Return segments, ids after the prompt and their origins; no ids if the text is encoded here."""
        segments = _segments(row["segments"])
        if not self.environments.are_encoded_here(row):
            return segments, ids.output(index), ids.origins(index)
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
        """Return an accepted trajectory with its length in the rows' tokenizer, and what speaks against its row."""
        try:
            turns, _ = self.turns(row, ids, index)
        except NotGivenBack:
            return candidate, ["not_given_back"]
        length = self.encoder.num_tokens_of(self.prompt(row), turns)
        reasons = ["too_long"] if length > self.options.cutoff_tokens else []
        if self.context_tokens is not None and length > self.context_tokens:
            reasons.append("over_context")
        return replace(candidate, num_row_tokens=length), reasons

    def _reasons(self, candidate: Candidate, dialect: Dialect) -> list[str]:
        return reasons_against(candidate, cutoff_tokens=self.options.cutoff_tokens, dialect=dialect)

    def _repaired_tags(self, environment: RowEnvironment) -> TagDialect | None:
        """Return the tags by which trajectories are repaired; None if they are not."""
        return environment.tags if self.options.repair else None

    def turns(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> tuple[Turns, bool]:
        """Return the turns of an accepted trajectory, and whether they had to be repaired.

        Raises NotGivenBack if they are encoded here, and the tokenizer does not give their text back.
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


def _facts(segments: Sequence[Segment], row: Mapping[str, Any]) -> Facts:
    """Return the facts about a trajectory that filters depend on; text outside of blocks is none of its steps."""
    steps = [Step(one.kind, one.text) for one in segments if one.kind not in SYSTEM_KINDS | {TEXT, REASONING}]
    calls = [(call["tool"], str(call["argument"]), call["turn"]) for call in orjson.loads(row["tool_calls"])]
    return facts_of_rollout(steps, calls)


def _segments(text: str) -> list[Segment]:
    return [Segment(part["kind"], part["text"], part["start"], part["end"]) for part in orjson.loads(text)]
