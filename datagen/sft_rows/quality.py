"""Apply the quality gate: the reasons why a trajectory may not be trained on.

A trajectory passes if its answer is right, its format is strict and no call failed (arXiv 2601.06860). The status of
calls comes from the ledger, the format from typed segments. Documented in docs/behaviour/sft_rows.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.agent.dialects.base import FRAME, Dialect, Segment
from treadle.agent.dialects.tag_faults import CALL_FAULTS, FORMAT_FAULTS
from treadle.agent.token_ids import ORIGIN_SYSTEM
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.datagen.texts.blocks import TEXT_FAULTS
from treadle.datagen.texts.files import ROW_FAULTS
from treadle.datagen.texts.rules import RULES
from treadle.environments.planning.violations import VIOLATIONS

REASONS = {
    "failed": "an infrastructure error prevented the rollout",
    "held_out": "the question is held out for evaluation",
    "unfinished": "the rollout did not end with its task, or was truncated",
    "unknown_verdict": "there is no verdict on the answer",
    "wrong_answer": "the answer is wrong",
    "no_text": "the model wrote nothing",
    **ROW_FAULTS,
    **TEXT_FAULTS,
    **VIOLATIONS,
    **FORMAT_FAULTS,
    **CALL_FAULTS,
    **RULES,
    "lost_contexts": "its context was trimmed, and no token ids say what each request showed",
    "ids_differ": "token ids, their origins and the segments are inconsistent",
    "too_long": "the row would be longer than the cut-off",
    "over_context": "the row would be longer than the context window of the model that it trains",
    "not_given_back": "the tokenizer of the rows does not give the text back",
}
"""Code -> description. A trajectory is counted under the first one that applies to it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The inputs of the quality gate.

    Attributes:
        status: How the rollout ended.
        correct: The verdict; None if it is unknown.
        segments: Everything after the prompt in typed segments.
        calls: (tool, status) of the ledger's entries, in their order.
        num_prompt_ids: Number of tokens before the first turn; 0 in text mode.
        num_output_ids: Number of tokens after the prompt; 0 in text mode.
        origins: Origin of each id after the prompt; empty in text mode.
        num_row_tokens: Number of tokens of the row that it becomes; 0 in text mode.
        truncated: Whether the rollout ended before its task did.
        held_out: Whether the question must not be trained on.
        lost_contexts: Whether its context was trimmed, and it has no ids of the rows' tokenizer.
    """

    status: str
    correct: bool | None
    segments: Sequence[Segment]
    calls: Sequence[tuple[str, str]]
    num_prompt_ids: int = 0
    num_output_ids: int = 0
    origins: bytes = b""
    num_row_tokens: int = 0
    truncated: bool = False
    held_out: bool = False
    lost_contexts: bool = False


def reasons_against(candidate: Candidate, *, cutoff_tokens: int, dialect: Dialect) -> list[str]:
    """Return the codes of all rules that a trajectory breaks, in the order of REASONS; empty if it may be trained on.

    In text mode the length is unknown and not checked.
    """
    if candidate.status == "failed":
        return ["failed"]
    reasons = ["held_out"] if candidate.held_out else []
    if candidate.status not in ("answered", "finished") or candidate.truncated:
        reasons.append("unfinished")
    if candidate.correct is not True:
        reasons.append("unknown_verdict" if candidate.correct is None else "wrong_answer")
    if not any(segment.text for segment in candidate.segments if segment.kind not in SYSTEM_KINDS):
        reasons.append("no_text")
    reasons += dialect.faults(candidate.segments, candidate.calls)
    if candidate.lost_contexts:
        reasons.append("lost_contexts")
    if not ids_fit(candidate):
        reasons.append("ids_differ")
    if candidate.num_row_tokens > cutoff_tokens:
        reasons.append("too_long")
    return reasons


def ids_fit(candidate: Candidate) -> bool:
    """Return whether each id belongs to one segment, and origins and segments agree on which ids the system wrote."""
    if len(candidate.origins) != candidate.num_output_ids or (candidate.origins and not candidate.num_prompt_ids):
        return False
    position = num_system = 0
    for segment in candidate.segments:
        if segment.start != position or segment.end < position:
            return False
        position = segment.end
        if segment.kind in SYSTEM_KINDS:
            part = candidate.origins[segment.start : segment.end]
            num_system += part.count(ORIGIN_SYSTEM)
            # The model samples the end of its turn, which belongs to a frame.
            if segment.kind != FRAME and part.count(ORIGIN_SYSTEM) != len(part):
                return False
    return position == candidate.num_output_ids and candidate.origins.count(ORIGIN_SYSTEM) == num_system
