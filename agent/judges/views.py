"""Render untrusted data for a judge model, in blocks whose tags no author of the data can predict.

Question, gold answers and all that an agent wrote or read are untrusted. Each is put into a block of its own, and all
tags of a view end in a nonce that is derived from a seed and the texts inside. A text that contains the nonce leads to
another nonce. So no text can end its block, and instructions inside stay where the judge is told to expect none.
Normative: docs/behaviour/judges.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from treadle.agent.dialects.base import FRAME, RESULT, TEXT, Segment
from treadle.agent.judges.cases import Case
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.config import canonical_json
from treadle.core.untrusted.lookalikes import sub_first
from treadle.core.untrusted.prompt_text import as_data
from treadle.core.untrusted.sanitize import sanitize

MAX_QUESTION_CHARS = 8_000
MAX_GOLD_CHARS = 4_000
MAX_SEGMENT_CHARS = 2_000
"""Limits in characters for the question, all gold answers, and each segment of a trajectory; a longer text keeps its
head and its tail."""

MAX_PREDICTION_CHARS = 2_000
"""Longest prediction that is compared with gold answers; a longer one counts as wrong."""

MAX_ANSWER_CHARS = 8_000
"""Limit in characters of an answer that is graded; a longer one keeps its head and its tail."""

SEGMENT_CHARS = (MAX_SEGMENT_CHARS, 1_000, 500, 250)
"""Most characters per segment of the trajectory; each next value is tried if the prompt exceeds the judge's window."""

SEGMENT_COUNTS = (240, 80, 24)
"""Most segments of the trajectory, tried in order if the smallest of SEGMENT_CHARS still exceeds the window."""

_BLANK = r"[\s\u200b-\u200d\u2060]*"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_OWN_NAMES = frozenset({"question", "gold", "predicted", "note", "final_answer"})
"""Names of blocks that views use themselves, so that no segment's block may have them."""
_TAG = re.compile(rf"<(?={_BLANK}(?:/{_BLANK})?[A-Za-z_][^<>]*>)")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of several trajectories of a question."""

    segments: Sequence[Segment]
    answer: str
    """The extracted answer; empty if there is none."""


@dataclass(frozen=True, slots=True)
class View:
    """Blocks of data, and the nonce that all their tags end in."""

    nonce: str
    text: str


def delimited(blocks: Iterable[tuple[str, str]], seed: int) -> View:
    """Render blocks of (name, data) as a view. Equal seed and data give an equal view; other data give other tags."""
    material = [(name, escape_untrusted(text)) for name, text in blocks]
    # The attempt number changes the nonce if a text contains it.
    nonces = (hashlib.sha256(canonical_json([seed, attempt, material])).hexdigest()[:16] for attempt in count())
    nonce = next(nonce for nonce in nonces if not any(nonce in text.lower() for _, text in material))
    return View(nonce, "\n\n".join(f"<{name}_{nonce}>\n{text}\n</{name}_{nonce}>" for name, text in material))


def answer_view(case: Case, seed: int, *, with_gold: bool = True) -> View:
    """Return a view of the answer only: question, gold answers (one per line) and predicted answer.

    Without gold answers the prediction may be long, and is shortened.
    """
    gold = [("gold", _gold(case.answers))] if with_gold else []
    prediction = case.prediction if with_gold else shortened(case.prediction, MAX_ANSWER_CHARS)
    question = shortened(case.question, MAX_QUESTION_CHARS)
    return delimited([("question", question), *gold, ("predicted", prediction)], seed)


def trajectory_views(
    question: str, answers: Sequence[str] | None, segments: Sequence[Segment], seed: int
) -> Iterator[View]:
    """Yield ever shorter views of a trajectory; see `trajectory_view`."""
    sizes: list[tuple[int, int | None]] = [(chars, None) for chars in SEGMENT_CHARS]
    sizes += [(SEGMENT_CHARS[-1], count) for count in SEGMENT_COUNTS if count < len(segments)]
    for max_chars, max_segments in sizes:
        yield trajectory_view(question, answers, segments, seed, max_chars, max_segments=max_segments)


def attempt_views(question: str, attempts: Sequence[Attempt], seed: int) -> Iterator[View]:
    """Yield ever shorter views of several trajectories of a question, never with gold answers.

    Blocks of the first trajectory are named `attempt_1_<kind of the segment>`, those of the second `attempt_2_...`, and
    so on. The block `attempt_1_final_answer` comes last and holds the answer that counts; without one it is left out.
    """
    sizes: list[tuple[int, int | None]] = [(chars, None) for chars in SEGMENT_CHARS]
    most = max((len(attempt.segments) for attempt in attempts), default=0)
    sizes += [(SEGMENT_CHARS[-1], count) for count in SEGMENT_COUNTS if count < most]
    for max_chars, max_segments in sizes:
        blocks = [("question", shortened(question, MAX_QUESTION_CHARS))]
        for number, attempt in enumerate(attempts, 1):
            parts = _segment_blocks(attempt.segments, max_chars, max_segments)
            if attempt.answer.strip():
                parts.append(("final_answer", shortened(attempt.answer, MAX_PREDICTION_CHARS)))
            blocks += [(f"attempt_{number}_{name}", text) for name, text in parts]
        yield delimited(blocks, seed)


def trajectory_view(
    question: str,
    answers: Sequence[str] | None,
    segments: Iterable[Segment],
    seed: int,
    max_segment_chars: int = MAX_SEGMENT_CHARS,
    max_segments: int | None = None,
) -> View:
    """Return a view of a trajectory: question, gold answers if any are given, and a block for each segment.

    Blocks are named after the kinds of segments, so messages of a dialogue appear under their roles. What a chat
    template writes between them is left out. Segments longer than `max_segment_chars` are shortened. Of more than
    `max_segments`, half are shown from each end, with a block named note in place of the others.
    """
    parts = _segment_blocks(segments, max_segment_chars, max_segments)
    gold = [] if answers is None else [("gold", _gold(answers))]
    return delimited([("question", shortened(question, MAX_QUESTION_CHARS)), *gold, *parts], seed)


def _segment_blocks(segments: Iterable[Segment], max_chars: int, max_segments: int | None) -> list[tuple[str, str]]:
    """Return a block per segment; see `trajectory_view`."""
    parts = [
        (_block_name(segment.kind), shortened(_inside(segment), max_chars))
        for segment in segments
        if segment.kind != FRAME
    ]
    if max_segments is None or len(parts) <= max_segments:
        return parts
    half = max_segments // 2
    note = ("note", f"[{len(parts) - 2 * half} blocks left out]")
    return [*parts[:half], note, *parts[-half:]]


def escape_untrusted(text: str) -> str:
    """Escape what could end a block or mislead a judge: tags, control tokens, control characters, direction marks."""
    return as_data(sanitize(sub_first(_TAG, text, lambda _: "&lt;"))).strip()


def shortened(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters of a text, half from each end, with a note on how many are left out."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _gold(answers: Sequence[str]) -> str:
    return shortened("\n".join(" ".join(answer.split()) for answer in answers), MAX_GOLD_CHARS)


def _block_name(kind: str) -> str:
    """Return the name of a segment's block. Kinds of imported rollouts are untrusted too."""
    return kind if _NAME.fullmatch(kind) and kind not in _OWN_NAMES else "other"


def _inside(segment: Segment) -> str:
    if segment.kind == TEXT or segment.kind in SYSTEM_KINDS - {RESULT}:
        return segment.text
    return segment.text.removeprefix(f"<{segment.kind}>").removesuffix(f"</{segment.kind}>")
