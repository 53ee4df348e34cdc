"""Find the option letters that a sentence names as its answer.

A letter may be a word or part of a name (`A blue car`, `vitamin C`), so a letter without brackets counts only if the
words around it show that it is an option. Letters that are joined (`B or C`, `A/C`) are named together; denied ones
(`not B`, `the wrong answer is B`) are not named, and a sentence that only denies names none. Patterns see windows of
bounded size, because predictions are written by models.

Patterns for the text before a letter end with `$`, those for the text behind it are matched from its start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_WINDOW = 60
"""Characters before and after a letter that are searched."""
_MAX_MENTIONS = 200

_CANDIDATE = re.compile(r"(?<![A-Za-z0-9\\'])(?:[(\[]\s?([A-Za-z])\s?[)\]]|([A-Za-z])(?![A-Za-z0-9'+-]))")
_LABEL_IN_FRONT = re.compile(
    r"[(\[]\s?[A-Za-z]\s?[)\]]|[A-Za-z](?:\s?(?:\)|[.:,](?!\d|[A-Za-z](?![A-Za-z])))|\s[-~]\s"
    r"|\s(?:rather than|instead of|because|since)\b)"
)

_NOUN = "(?:answers?|options?|choices?|letter|alternative|solution)"
_CJK_NOUN = r"(?:正确答案|答案|答え|正解|정답)\s?(?:是|为|為|は|은|는)?"
_THEREFORE = "(?:so|thus|hence|therefore|consequently|finally)"
_HEDGE = r"(?:(?:therefore|thus|definitely|clearly|probably|likely|most likely|indeed|simply|actually|only)\s)?"
_COPULA = rf"(?:(?:is|are|was|be)\b|=|->|=>)\s?:?\s?{_HEDGE}"

LEAD_IN = re.compile(
    rf"(?:{_THEREFORE}\b[\s,]{{0,2}})?(?:(?:the|my|our|its)\s)?(?:(?:final|correct|right|best)\s){{0,2}}{_NOUN}\s?"
    r"(?:(?:is|would be|should be|must be)\b\s?:?|[:=-]|->)\s?"
    rf"|{_CJK_NOUN}\s?:?\s?",
    re.IGNORECASE,
)
"""Words at the start of a text that announce the answer."""
ANSWER_BEFORE = re.compile(
    rf"(?:\b(?:{_NOUN}|one|it|this|that)\s(?:\w{{1,20}}\s){{0,3}}?{_COPULA}|\banswers?\s?|(?<=[\w)])\s?[:=>]\s?|{_CJK_NOUN}\s?|选择?|選擇?"
    rf"|\b(?:choose|chose|pick|picked|select|selected|prefer|go with|going with)\s)(?:the\s)?(?:{_NOUN}\s)?$",
    re.IGNORECASE,
)
ANSWER_BEHIND = re.compile(
    r"\s(?:is|are|must be|would be|seems)\s(?:(?:both|also|equally|clearly|probably|definitely|indeed|actually)\s)?"
    r"(?:the\s)?(?:only\s)?(?:correct|right|best|true|answer)\b",
    re.IGNORECASE,
)
CONCLUDED = re.compile(rf"(?:\b{_THEREFORE}[,:]?|\w{{2}}[\"')\]]{{0,2}}[.!;])\s$", re.IGNORECASE)
"""Pattern of a word of conclusion, such as `so`, or of the end of a sentence. A letter right after it is the answer if
the text ends with that letter. Two characters before the full stop exclude initials (`D. C.`)."""
ENDS = re.compile(r"[\s.!]*$")
OPTION_BEFORE = re.compile(rf"(?:\b{_NOUN}|选项|選項|選択肢)\s?[:#]?\s?$", re.IGNORECASE)

_WRONG = (
    "(?:wrong|incorrect|false|worst|invalid|impossible|unlikely|implausible|improbable|inappropriate|untrue"
    r"|(?:least|less)\s\w{1,20})"
)
_DENIAL = (
    r"(?:\bnot|n't|\bcannot|\bnever|\bneither|\bnor|\bavoid(?:ing)?|\bagainst|\brather than|\binstead of"
    r"|\bexcept(?:\sfor)?|\bother than|\bwithout|\bthan|\bexclud(?:ed?|es|ing)|\beliminat(?:ed?|es|ing)"
    r"|\breject(?:s|ed|ing)?|\bdismiss(?:es|ed|ing)?|\bdiscard(?:s|ed|ing)?|\brul(?:ed?|es|ing) out|(?<=\w\s)over"
    rf"|\b{_WRONG})"
)
_BETWEEN = (
    "(?:be|been|to|choose|choosing|chosen|pick|picking|picked|select|selecting|selected|go|going|gone|with|for|say|think"
    "|believe|recommend|suggest|consider|assume|claim|that|it|it's|is|was|are|would|could|should|must|the|this|my|our"
    f"|either|both|correct|right|best|true|likely|probably|one|{_NOUN})"
)
"""Words that may occur between a denial and the letter that it denies; a comma or any other word ends its reach."""
DENIED_BEFORE = re.compile(rf"(?:{_DENIAL}(?:\s{_BETWEEN})*\s?[:=]?|不是|而不是|非)\s?$", re.IGNORECASE)
DENIED_BEHIND = re.compile(
    r"\s(?:(?:is|are|was|were|seems?|(?:can|must|would|should|could|may|might|has to) be|looks?)\s"
    r"(?:(?:both|also|clearly|definitely|probably|obviously|certainly|the|an?)\s){0,2}"
    rf"(?:not|never|{_WRONG}|excluded|eliminated|ruled out|rejected|out\b)"
    r"|(?:does|do|can|could|would|should|will|may|might|must) not|(?:is|are|was|does|do|could|would|should|wo|ca)n't"
    r"|cannot|never)\b",
    re.IGNORECASE,
)

LISTED = re.compile(
    rf"\s?(?:[/&]|,?\s?(?:and/or|and|or|nor)\b|[和或与及])\s?(?:(?:the|{_NOUN})\s){{0,2}}", re.IGNORECASE
)
"""All of the text between two letters that are denied together: `A and B are wrong`."""
JOINED = re.compile(
    rf"(?:[,/&;+]|\b(?:and|or|nor)\b|[和或与及])\s?(?:(?:and|or|maybe|possibly|perhaps|even|also|both|{_NOUN})\s){{0,3}}$",
    re.IGNORECASE,
)
OPPOSED = re.compile(rf"(?:\bbut(?:\s(?:rather|instead|{_NOUN}))?\s|而是)$", re.IGNORECASE)
CLOSES = re.compile(
    r"\s?(?:$|[.,:;!?)\]/&]|[^\x00-\x7f])|\s(?:because|since|as|and|or|but|not|rather|instead|is|are|-)\b",
    re.IGNORECASE,
)
"""Text that follows a bare letter if it is not a word; required for `A`, `I` and small letters."""


@dataclass(slots=True)
class _Mention:
    letter: str
    strength: int
    """How clearly the text mentions an option: 2 as its answer, 1 in brackets or after a word such as `option`, 0 if
    the letter may also be a word."""
    is_denied: bool
    is_joined: bool
    """Whether the letter is joined with the one mentioned before it, as in `B or C`."""


def letters_named(text: str) -> set[str]:
    """Return the letters, in upper case, that a text without markup names as its answer; several if it is undecided."""
    best, named = 1, set[str]()
    for group in _groups(_mentions(text)):
        strength = max((mention.strength for mention in group if not mention.is_denied), default=0)
        letters = {mention.letter for mention in group if not mention.is_denied}
        if letters and strength >= best:
            named = letters if strength > best else named | letters
            best = strength
    return named


def _groups(mentions: Iterator[_Mention]) -> Iterator[list[_Mention]]:
    group: list[_Mention] = []
    for mention in mentions:
        if group and not mention.is_joined:
            yield group
            group = []
        group.append(mention)
    if group:
        yield group


def _mentions(text: str) -> Iterator[_Mention]:
    label = _LABEL_IN_FRONT.match(text)
    last: _Mention | None = None
    end = 0
    for number, match in enumerate(_CANDIDATE.finditer(text)):
        if number == _MAX_MENTIONS:
            break
        letter, is_bare = (match[1] or match[2]), match[1] is None
        before, behind = text[max(end, match.start() - _WINDOW) : match.start()], text[match.end() :][:_WINDOW]
        is_word = is_bare and (letter in "AI" or letter.islower()) and not CLOSES.match(behind)
        is_label = label is not None and match.end() <= label.end()
        is_option = not is_bare or bool(OPTION_BEFORE.search(before))
        if is_word and not is_label and not (letter == "A" and is_option):
            continue
        is_listed = last is not None and bool(LISTED.fullmatch(before))
        is_denied_behind = bool(DENIED_BEHIND.match(behind))
        is_denied = is_denied_behind or bool(DENIED_BEFORE.search(before))
        if last is not None and is_listed:
            is_denied = is_denied or last.is_denied
            last.is_denied = last.is_denied or is_denied_behind
        if last is not None:
            yield last
        is_opposed = last is not None and last.is_denied and bool(OPPOSED.search(before))
        is_answer = is_label or is_opposed or _is_stated(before, behind)
        last = _Mention(
            letter.upper(),
            strength=2 if is_answer else int(is_option),
            is_denied=is_denied,
            is_joined=last is not None and (bool(JOINED.search(before)) or not before.strip()),
        )
        end = match.end()
    if last is not None:
        yield last


def _is_stated(before: str, behind: str) -> bool:
    """Return whether the words around a letter present it as the answer."""
    if ANSWER_BEFORE.search(before) or ANSWER_BEHIND.match(behind):
        return True
    return bool(CONCLUDED.search(before) and ENDS.match(behind))
