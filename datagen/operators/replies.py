"""Parse the replies of critics and refiners: step numbers, corrected steps, new steps, paragraphs and thoughts.

Tolerant of variations of the format (case, brackets, bold labels, blank lines, leading words), strict about the
content. The only exception raised is EditRejected, with the raw reply. Time is linear in the reply's length. The rules
are in docs/behaviour/flywheel.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from treadle.agent.dialects.base import RESULT
from treadle.agent.dialects.tags import TagDialect, cut_after_first_close
from treadle.agent.role import Reply
from treadle.datagen.operators.rejection import EditRejected

THINK = "think"
"""Name of the tag of thoughts."""

# All repetitions are bounded or possessive, so that a hostile reply takes only linear time.
_LINE = r"^[ \t>*_#`-]{0,16}"
_COLON = r"[ \t*_]{0,8}:"
_OPEN, _CLOSE = r"[\s*_`\"'\[({<]{0,16}", r"[ \t*_`\"'\])}>.]{0,16}"
_NUMBER = re.compile(rf"(?<![A-Za-z])step{_COLON}{_OPEN}([0-9]++)(?!\.[0-9])", re.I)
_NO_STEP = re.compile(rf"{_LINE}step{_COLON}[ \t*_`\"'\[({{<]{{0,16}}no(?:ne)?{_CLOSE}\r?$", re.I | re.M)
_ANALYSIS = re.compile(rf"analysis{_COLON}[ \t*_]{{0,8}}", re.I)
_CORRECTED_LABEL = rf"corrected[ \t_]{{1,4}}step[ \t]{{0,4}}[\[(]?[0-9]{{0,9}}[\])]?{_COLON}[ \t*_]{{0,8}}"
_CORRECTED_LINE = re.compile(_LINE + _CORRECTED_LABEL, re.I | re.M)
_CORRECTED = re.compile(_CORRECTED_LABEL, re.I)
_ECHO = re.compile(
    rf"\s*+(?:```[a-z]{{0,12}}\s*+)?(?:[#*_ \t]{{0,16}}(?:new|last|corrected)?[ \t]{{0,4}}(?:last[ \t]{{1,4}})?"
    rf"step[ \t]{{0,4}}[\[(]?[0-9]{{0,9}}[\])]?{_COLON}[\s*_]{{0,8}})?",
    re.I,
)
_PARAGRAPH_END = re.compile(r"\n[ \t]{0,16}\n")
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Redundancy:
    """The first step with redundancy, the analysis, and the step without it."""

    step: int
    analysis: str
    new_step: str


def read_step_number(reply: Reply, num_steps: int) -> int:
    """Return the number after the first `Step:` before the first `Analysis:`; raise EditRejected if it is invalid."""
    found = _find_number(reply.text)
    if found is None:
        raise EditRejected("no_step_number", reply.text)
    return _in_range(found[1], num_steps, reply)


def read_redundancy(reply: Reply, num_steps: int, dialect: TagDialect) -> Redundancy:
    """Return the redundancy that a reply describes; raise EditRejected if there is none or the reply is malformed.

    The reason is `no_redundancy` if the reply reports none.
    """
    text = cut_after_first_close(reply.text, dialect)
    number, none = _find_number(text), _NO_STEP.search(text)
    if none is not None and (number is None or none.start() < number[0]):
        raise EditRejected("no_redundancy", reply.text)
    if number is None:
        raise EditRejected("no_step_number", reply.text)
    step = _in_range(number[1], num_steps, reply)
    label = _CORRECTED_LINE.search(text) or _CORRECTED.search(text)
    if label is None or not text[label.end() :].strip():
        raise EditRejected("no_corrected_step", reply.text)
    analysis = _ANALYSIS.search(text, 0, label.start())
    why = text[analysis.end() : label.start()].strip() if analysis else ""
    return Redundancy(step, why, complete_step(text[label.end() :], reply, dialect))


def read_new_step(reply: Reply, dialect: TagDialect) -> str:
    """Return the step that a refiner wrote, completed; raise EditRejected if it is unusable."""
    return complete_step(reply.text, reply, dialect)


def complete_step(text: str, reply: Reply, dialect: TagDialect) -> str:
    """Return a step that starts with a closed thought, cut after its first call or answer.

    Missing markers of the thought are added; a step that has them is unchanged except for surrounding whitespace. In a
    step without call or answer the thought stays open, and the policy continues it. Raises EditRejected if the step is
    empty, unfinished or malformed.
    """
    text = cut_after_first_close(text, dialect)
    text = text[_end_of_echo(text) :].strip()
    if not dialect.markers.sub("", text).strip():
        raise EditRejected("empty_step", reply.text)
    if any(match[2] == RESULT for match in dialect.markers.finditer(text)):
        raise EditRejected("result_in_step", reply.text)
    think = dialect.by_name[THINK]
    start = _start_of_action(text, reply, dialect)
    thought, action = text[:start], text[start:]
    if not thought.startswith(think.opening):
        thought = think.opening + thought
    if action and thought.rfind(think.opening) > thought.rfind(think.closing):
        thought = thought.rstrip() + think.closing
    return thought + action


def read_paragraph(reply: Reply, lead_in: str, what: str, dialect: TagDialect) -> str:
    """Return the first paragraph of a reply, with its lead-in; raise EditRejected (`empty_<what>`) if it is empty."""
    text = cut_after_first_close(reply.text, dialect).strip()
    end = _PARAGRAPH_END.search(text)
    text = text[: end.start()].rstrip() if end else text
    if not text:
        raise EditRejected(f"empty_{what}", reply.text)
    return f"{lead_in} {text}"


def read_thought(reply: Reply, max_chars: float, dialect: TagDialect) -> str:
    """Return the text of a prefilled thought up to its closing marker; raise EditRejected if it is unusable."""
    think = dialect.by_name[THINK]
    thought, closing, _ = reply.text.partition(think.closing)
    if not closing:
        raise EditRejected("unclosed_thought", reply.text)
    # Models may repeat the prefilled marker.
    if thought.lstrip().startswith(think.opening):
        thought = thought.lstrip().removeprefix(think.opening)
    if not thought.strip():
        raise EditRejected("empty_thought", reply.text)
    if dialect.markers.search(thought):
        raise EditRejected("marker_in_thought", reply.text)
    if len(thought) > max_chars:
        raise EditRejected("longer_thought", reply.text)
    return thought


def _find_number(text: str) -> tuple[int, str] | None:
    """Return position and digits of the first step number; None if none precedes `Analysis:` and `Corrected Step:`."""
    ends = [match.start() for match in (_ANALYSIS.search(text), _CORRECTED.search(text)) if match]
    match = _NUMBER.search(text, 0, min(ends, default=len(text)))
    return (match.start(), match[1]) if match else None


def _in_range(digits: str, num_steps: int, reply: Reply) -> int:
    digits = digits.lstrip("0")
    # Python refuses to parse integers of thousands of digits.
    if not digits or len(digits) > _MAX_DIGITS or int(digits) > num_steps:
        raise EditRejected("step_out_of_range", reply.text)
    return int(digits)


def _end_of_echo(text: str) -> int:
    """Return where a step starts after what models may put before it: a fence, the label, the heading of the prompt."""
    match = _ECHO.match(text)
    return match.end() if match else 0


def _start_of_action(text: str, reply: Reply, dialect: TagDialect) -> int:
    """Return where the call or answer at the end of a step starts; the length of the text if there is none."""
    closed = dialect.closing_stops.search(text)
    opening = next((match for match in dialect.markers.finditer(text) if _opens_action(match, dialect)), None)
    if closed is None:
        if opening is not None or reply.is_truncated:
            raise EditRejected("unfinished_step", reply.text)
        return len(text)
    if opening is None or not text.endswith(dialect.by_name[opening[2]].closing):
        raise EditRejected("broken_markers", reply.text)
    inside = text[opening.end() : -len(dialect.by_name[opening[2]].closing)]
    if dialect.markers.search(inside):
        # The engine would take everything after the first opening marker as the argument.
        raise EditRejected("broken_markers", reply.text)
    if not inside.strip():
        raise EditRejected("empty_call", reply.text)
    return opening.start()


def _opens_action(match: re.Match[str], dialect: TagDialect) -> bool:
    return not match[1] and dialect.by_name[match[2]].stop
