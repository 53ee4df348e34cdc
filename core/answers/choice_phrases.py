"""Phrases around the option letter of a multiple-choice answer: those that state it, and those that deny it.

Patterns for the text before a letter end with `$`, those for the text behind it are matched from its start.
"""

from __future__ import annotations

import re

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
"""A conclusion, or the end of a sentence; names the letter behind it if the text ends there. Two characters before the
full stop keep out initials (`D. C.`)."""
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
"""Words that may stand between a denial and the letter that it denies; a comma or any other word ends its reach."""
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
