"""Apply the quality gate to trajectories, each by the dialect of its environment, repaired if that is enabled."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from treadle.agent.dialects.base import Dialect, Segment
from treadle.agent.dialects.tag_faults import format_faults
from treadle.agent.dialects.tags import TagDialect
from treadle.datagen.sft_rows.encoding import IdColumns, RowEncoder, Turns
from treadle.datagen.sft_rows.quality import Candidate, reasons_against
from treadle.datagen.sft_rows.repairs import repair_turn
from treadle.datagen.sft_rows.row_environments import RowEnvironment, RowEnvironments
from treadle.datagen.sft_rows.settings import SftRowsOptions

REPAIRABLE = frozenset({"bad_start", "no_think", "think_unbalanced", "order"})
"""Reasons that a repair may remove; it is tried only if no other reason applies."""


@dataclass(frozen=True, slots=True)
class QualityGate:
    """The rules that decide whether a trajectory may become a row.

    Attributes:
        held_out: Keys of the questions whose trajectories may not.
    """

    options: SftRowsOptions
    environments: RowEnvironments
    encoder: RowEncoder
    held_out: Collection[str]

    def judge(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> tuple[Candidate, list[str]]:
        """Return the trajectory, repaired if that is enabled and possible, and its reasons for rejection."""
        environment = self.environments.of(row)
        num_prompt, output, origins = ids.num_prompt(index), ids.output(index), ids.origins(index)
        candidate = Candidate(
            status=row["status"],
            correct=row["correct"],
            segments=_segments(row["segments"]),
            calls=[(call["tool"], call["status"]) for call in orjson.loads(row["tool_calls"])],
            num_prompt_ids=num_prompt,
            num_output_ids=len(output),
            origins=origins,
            num_row_tokens=self.encoder.num_tokens(num_prompt, output, origins),
            truncated=row["truncated"],
            held_out=row["question_key"] in self.held_out,
        )
        reasons = self._reasons(candidate, environment.dialect)
        tags = self._repaired_tags(environment)
        if tags is None or not reasons or not REPAIRABLE.issuperset(reasons):
            return candidate, reasons
        repaired_turn = repair_turn(candidate.segments, output, origins, self.environments.tokenizer, tags)
        if repaired_turn is None:
            return candidate, reasons
        origins = bytes(repaired_turn.origins)
        other = replace(
            candidate,
            segments=repaired_turn.segments,
            num_output_ids=len(repaired_turn.ids),
            origins=origins,
            num_row_tokens=self.encoder.num_tokens(num_prompt, repaired_turn.ids, origins),
        )
        return other, self._reasons(other, environment.dialect)

    def _reasons(self, candidate: Candidate, dialect: Dialect) -> list[str]:
        return reasons_against(candidate, cutoff_tokens=self.options.cutoff_tokens, dialect=dialect)

    def _repaired_tags(self, environment: RowEnvironment) -> TagDialect | None:
        """Return the tags by which trajectories are repaired; None if they are not."""
        return environment.tags if self.options.repair else None

    def turns(self, row: Mapping[str, Any], ids: IdColumns, index: int) -> tuple[Turns, bool]:
        """Return the turns of an accepted trajectory, and whether they had to be repaired."""
        environment = self.environments.of(row)
        segments: Sequence[Segment] = _segments(row["segments"])
        output, origins = ids.output(index), ids.origins(index)
        tags = self._repaired_tags(environment)
        repaired = tags is not None and bool(format_faults(segments, tags))
        if tags is not None and repaired:
            repaired_turn = repair_turn(segments, output, origins, self.environments.tokenizer, tags)
            assert repaired_turn is not None
            segments, output, origins = repaired_turn.segments, repaired_turn.ids, bytes(repaired_turn.origins)
        return Turns.of(segments, output, origins, environment.dialect), repaired


def _segments(text: str) -> list[Segment]:
    return [Segment(part["kind"], part["text"], part["start"], part["end"]) for part in orjson.loads(text)]
