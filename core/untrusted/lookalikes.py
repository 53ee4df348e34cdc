"""Find markup that a text spells with look-alike or invisible characters.

A page, a tool or a model can write a tag that plain patterns miss but a model still reads as a tag: with full-width or
otherwise different brackets, or with zero-width characters in between. All functions are pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

_BRACKETS = str.maketrans(
    {
        **dict.fromkeys("\u2039\u2329\u27e8\u3008\u02c2\u276e\u1438\u29fc\U0001f700", "<"),
        **dict.fromkeys("\u203a\u232a\u27e9\u3009\u02c3\u276f\u1433\u29fd", ">"),
        **dict.fromkeys("\u2044\u2215\u29f8\u2571", "/"),
        **dict.fromkeys("\u2223\u01c0\u2758\u23d0", "|"),
    }
)
_INVISIBLE = frozenset({"Cf", "Mn", "Me", "Cc"})
"""Unicode categories without width of their own: format characters such as the soft hyphen, and combining marks."""
_BLANKS = "\t\n\r\x0b\x0c"


def sub_first(pattern: re.Pattern[str], text: str, replace: Callable[[str], str]) -> str:
    """Replace the first character of each match, treating look-alikes as the characters that they resemble.

    `replace` gets that character in its plain form. The rest of the text stays unchanged.
    """
    if text.isascii() and "\x00" not in text:
        return pattern.sub(lambda match: replace(match[0][0]) + match[0][1:], text)
    plain, places = _plain(text)
    parts, end = [], 0
    for match in pattern.finditer(plain):
        if match.start() == match.end():
            continue
        place = places[match.start()]
        parts += [text[end:place], replace(plain[match.start()])]
        end = place + 1
    return "".join([*parts, text[end:]])


def _plain(text: str) -> tuple[str, list[int]]:
    """Return the text without look-alikes and invisible characters, and the original position of each character."""
    plain: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        folded = character if character.isascii() and character != "\x00" else _fold(character)
        plain.append(folded)
        places += [place] * len(folded)
    return "".join(plain), places


@lru_cache(maxsize=4096)
def _fold(character: str) -> str:
    folded = unicodedata.normalize("NFKC", character.translate(_BRACKETS))
    return "".join(one for one in folded if one in _BLANKS or unicodedata.category(one) not in _INVISIBLE)
