r"""Textual forms of mathematical answers.

`textual_form` is the normalisation customary for the MATH data set (Hendrycks et al. 2021): two answers whose forms
are equal are the same answer. `clean` goes before it and removes what carries no meaning: delimiters, spacing
commands, currency, units, thousands separators.
"""

from __future__ import annotations

import re

from treadle.core.answers.extraction import closing_brace, unwrap_command
from treadle.core.answers.text_match import normalize_math

WRAPPERS = ("text", "mathrm", "textbf", "mathbf", "mbox", "boxed", "fbox")

_SYMBOLS = {
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{MULTIPLICATION SIGN}": r"\times ",
    "\N{MIDDLE DOT}": r"\cdot ",
    "\N{DOT OPERATOR}": r"\cdot ",
    "\N{GREEK SMALL LETTER PI}": r"\pi ",
    "\N{INFINITY}": r"\infty ",
    "\N{UNION}": r"\cup ",
    "\N{PLUS-MINUS SIGN}": r"\pm ",
    "\N{LESS-THAN OR EQUAL TO}": r"\le ",
    "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
    "\N{DEGREE SIGN}": "",
}
_SPACING = re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad(?![a-zA-Z])")
_DROPPED = re.compile(
    r"\\!|(?<!\\)\\[()\[\]]|\\?\$|\\?%|\^\{\\circ\}|\^\\circ(?![a-zA-Z])|\\degree(?![a-zA-Z])"
    r"|\\(?:displaystyle|left|right|[bB]igg?[lr]?)(?![a-zA-Z])"
)
_CONJUNCTION = re.compile(r"\\text\{\s{0,8}(?:and|or)\s{0,8}\}|,?(?<![a-z\\])\b(?:and|or)\b(?![a-z])")
_MEMBERSHIP = re.compile(r"[a-z]\s{0,8}\\in(?![a-z])\s{0,8}|\([a-z](?:\s?,\s?[a-z]){1,8}\)\s?=\s?")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_UNIT_POWER = re.compile(r"\^(?:\{\d\}|\d)$")
_UNIT_START = re.compile(r"\\(?:text|mathrm|textbf|mbox)\{")
_PLAIN_UNIT = re.compile(
    r"(?<=[\d})])\s?(?:square |sq\.? |cubic )?(?:[cmk]?m|mi|ft|in|feet|foot|inch(?:es)?|met(?:er|re)s?|miles?|yards?"
    r"|[cmk]?g|grams?|kilograms?|pounds?|lbs?|hours?|hrs?|minutes?|mins?|seconds?|secs?|days?|weeks?|months?|years?"
    r"|dollars?|cents?|usd|euros?|units?|degrees?|percent|people|mph|km/h)(?:\^(?:\{\d\}|\d))?"
)


def clean(text: str) -> str:
    r"""Lower-case form without delimiters, spacing commands, `$`, `%`, degrees, a trailing unit and separators.

    `\text{…}` around the whole is taken off; `and`/`or` between values become commas.
    """
    for symbol, replacement in _SYMBOLS.items():
        text = text.replace(symbol, replacement)
    text = text.replace("{,}", ",").replace(r"\{", r"\lbrace ").replace(r"\}", r"\rbrace ")
    text = normalize_math(_DROPPED.sub("", _SPACING.sub(" ", text)))
    text = unwrap_command(text, WRAPPERS).strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    text = _CONJUNCTION.sub(",", _cut_unit(text))
    if match := _MEMBERSHIP.match(text):
        text = text[match.end() :]
    return _join_thousands(text).strip()


def _cut_unit(text: str) -> str:
    body = _UNIT_POWER.sub("", text)
    if body.endswith("}"):
        for match in reversed(list(_UNIT_START.finditer(body))):
            if match.start() > 0 and closing_brace(body, match.end()) == len(body) - 1:
                return body[: match.start()].rstrip()
        return text
    # A unit is a few words at the end; looking at the tail alone keeps this linear.
    head, tail = text[:-40], text[-40:]
    for match in _PLAIN_UNIT.finditer(tail):
        if match.end() == len(tail):
            return head + tail[: match.start()]
    return text


def _join_thousands(text: str) -> str:
    """Delete thousands separators outside brackets: `1,000` is a number, the comma of `(1,000)` separates."""
    if "," not in text:
        return text
    parts: list[str] = []
    depth = start = 0
    for index, character in enumerate(text):
        if character in "([":
            if depth == 0:
                parts.append(_THOUSANDS.sub(_without_commas, text[start:index]))
                start = index
            depth += 1
        elif character in ")]" and depth > 0:
            depth -= 1
            if depth == 0:
                parts.append(text[start : index + 1])
                start = index + 1
    tail = text[start:]
    parts.append(tail if depth or r"\lbrace" in text else _THOUSANDS.sub(_without_commas, tail))
    return "".join(parts)


def _without_commas(match: re.Match[str]) -> str:
    return match[0].replace(",", "")


def textual_form(text: str, *, original: bool = False) -> str:
    r"""The comparable form of an answer; purely textual, never fails.

    `original` keeps one habit of the widespread implementation that loses information: everything behind the first
    `\text{ ` is taken for a unit, wherever it stands.
    """
    text = normalize_math(text).replace("\n", "").replace(r"\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac").replace(r"\left", "").replace(r"\right", "")
    text = text.replace(r"^{\circ}", "").replace(r"^\circ", "").replace(r"\$", "")
    unit = text.find(r"\text{ ")
    if unit >= 0 and text.count(r"\text{ ") == 1 and (original or closing_brace(text, unit + 6) == len(text) - 1):
        text = text[:unit]
    text = text.replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = "0" + text if text.startswith(".") else text
    left, equals, right = text.partition("=")
    if equals and "=" not in right and len(left) <= 2:
        text = right
    text = re.sub(r"\\sqrt\s?([^{\s\[])", r"\\sqrt{\1}", text).replace(" ", "")
    text = _brace_fractions(text)
    if text == "0.5":
        return r"\frac{1}{2}"
    if match := re.fullmatch(r"(-?\d+)/(-?\d+)", text):
        return rf"\frac{{{match[1]}}}{{{match[2]}}}"
    return text


def _brace_fractions(text: str) -> str:
    r"""Write `\frac12`, `\frac1{72}` and `\frac{1}2` with braces around both parts."""
    text = re.sub(r"\\frac([^{\\])([^{\\])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac([^{\\])(?=\{)", r"\\frac{\1}", text)
    return re.sub(r"(\\frac\{[^{}]{1,64}\})([^{\\])", r"\1{\2}", text)
