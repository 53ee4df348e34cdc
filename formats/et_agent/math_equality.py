"""Compare answers to mathematical questions as text, like the program published with arXiv 2601.06860."""

from __future__ import annotations

import re

_DROPPED = (r"\left", r"\right", r"^{\circ}", r"^\circ", r"\$")
_UNIT = r"\text{ "
_HALF = r"\frac{1}{2}"


class _NoForm(Exception):
    """Text on which the published program's own normalisation fails."""


def legacy_math_equal(prediction: str, gold: str) -> bool:
    """Return whether two texts have the same form, or are identical if one of them has none.

    Letter case and white space other than blanks and newlines count; the caller normalises them.
    """
    try:
        return _math_form(prediction) == _math_form(gold)
    except _NoForm:
        return prediction == gold


def _math_form(text: str) -> str:
    text = text.replace("\n", "").replace(r"\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for command in _DROPPED:
        text = text.replace(command, "")
    if text.count(_UNIT) > 1:
        raise _NoForm
    text = text.partition(_UNIT)[0].replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = f"0{text}"
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return _HALF if text == "0.5" else _fraction_of_integers(text)


def _braced_roots(text: str) -> str:
    r"""Put braces around the single character after each `\sqrt`, whichever it is."""
    head, *tails = text.split(r"\sqrt")
    if not all(tails):
        raise _NoForm
    return r"\sqrt".join([head, *(tail if tail[0] == "{" else f"{{{tail[0]}}}{tail[1:]}" for tail in tails)])


def _braced_fractions(text: str) -> str:
    r"""Put braces into `\frac12` and `\frac1{72}`; a single character at the end leaves the whole text unchanged."""
    parts, *tails = text.split(r"\frac")
    for tail in tails:
        if not tail:
            raise _NoForm
        if tail[0] == "{":
            parts += rf"\frac{tail}"
        elif len(tail) == 1:
            return text
        elif tail[1] == "{":
            parts += rf"\frac{{{tail[0]}}}{tail[1:]}"
        else:
            parts += rf"\frac{{{tail[0]}}}{{{tail[1]}}}{tail[2:]}"
    return parts


def _fraction_of_integers(text: str) -> str:
    match = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return rf"\frac{{{match[1]}}}{{{match[2]}}}" if match else text
