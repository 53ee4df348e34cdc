"""What a judge model gets to see: data in blocks whose tags nobody could write in advance.

Question, gold answers and all that an agent said or was told come from others. Each stands in a block of its own, and
all tags of one view carry a nonce that is drawn from a seed and the very texts inside: a text that held its own nonce
would have to be found by trying, and is refused even then. So nothing inside can end its block, and whatever orders it
gives stand where the judge was told to expect none. Normative: docs/behaviour/judges.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from treadle.agent.judges.base import Case
from treadle.agent.prompts import as_data
from treadle.agent.protocol import TEXT, Segment
from treadle.core.config import canonical_json
from treadle.core.harmless import harmless

MAX_QUESTION_CHARS = 8_000
MAX_GOLD_CHARS = 4_000
MAX_SEGMENT_CHARS = 2_000
"""Of each part of a trajectory; what is longer keeps head and tail."""

_BLANK = r"[\s\u200b-\u200d\u2060]*"
_TAG = re.compile(rf"<(?={_BLANK}(?:/{_BLANK})?[A-Za-z_][^<>]*>)")


@dataclass(frozen=True, slots=True)
class View:
    """Blocks of data, one after the other, and the nonce that all their tags end in."""

    nonce: str
    text: str


def delimited(blocks: Iterable[tuple[str, str]], seed: int) -> View:
    """Blocks of (name, data). The same seed and data give the same view; other data give other tags."""
    material = [(name, as_material(text)) for name, text in blocks]
    nonces = (hashlib.sha256(canonical_json([seed, attempt, material])).hexdigest()[:16] for attempt in count())
    nonce = next(nonce for nonce in nonces if not any(nonce in text.lower() for _, text in material))
    return View(nonce, "\n\n".join(f"<{name}_{nonce}>\n{text}\n</{name}_{nonce}>" for name, text in material))


def answer_view(case: Case, seed: int) -> View:
    """The answer alone: question, gold answers (one a line), predicted answer; nothing of how it was found."""
    return delimited(
        [
            ("question", shortened(case.question, MAX_QUESTION_CHARS)),
            ("gold", _gold(case.answers)),
            ("predicted", case.prediction),
        ],
        seed,
    )


def trajectory_view(
    question: str,
    answers: Sequence[str],
    segments: Iterable[Segment],
    seed: int,
    max_segment_chars: int = MAX_SEGMENT_CHARS,
    max_segments: int | None = None,
) -> View:
    """The whole way: question, gold answers, and every segment in a block named after its kind, long ones shortened.

    Of more than `max_segments` half are shown from each end, with a block named note in place of the others.
    """
    parts = [(segment.kind, shortened(_inside(segment), max_segment_chars)) for segment in segments]
    if max_segments is not None and len(parts) > max_segments:
        half = max_segments // 2
        note = ("note", f"[{len(parts) - 2 * half} blocks left out]")
        parts = [*parts[:half], note, *parts[-half:]]
    return delimited(
        [("question", shortened(question, MAX_QUESTION_CHARS)), ("gold", _gold(answers)), *parts],
        seed,
    )


def as_material(text: str) -> str:
    """Text that spells no tag and no control token, and whose control characters and direction marks are escapes."""
    return as_data(_TAG.sub("&lt;", harmless(text))).strip()


def shortened(text: str, max_chars: int) -> str:
    """At most so many characters of a text, half from each end, with a note of what is left out."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _gold(answers: Sequence[str]) -> str:
    return shortened("\n".join(" ".join(answer.split()) for answer in answers), MAX_GOLD_CHARS)


def _inside(segment: Segment) -> str:
    if segment.kind == TEXT:
        return segment.text
    return segment.text.removeprefix(f"<{segment.kind}>").removesuffix(f"</{segment.kind}>")
