r"""Normalise mathematical answers as text.

`clean` removes what carries no meaning: delimiters, spacing commands, emphasis, thousands separators. Answers with
equal `plain_form` are the same answer.
"""

from __future__ import annotations

import re

from treadle.core.answers.extraction import closing_brace, unwrap_command
from treadle.core.answers.text_match import collapse

WRAPPERS = (
    "text", "mathrm", "textbf", "mathbf", "mbox", "boxed", "fbox", "textit", "textrm", "mathit", "mathsf", "emph",
    "underline", "boldsymbol", "operatorname", "ensuremath",
)  # fmt: skip

_SYMBOLS = {
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{MULTIPLICATION SIGN}": r"\times ",
    "\N{DIVISION SIGN}": r"\div ",
    "\N{MIDDLE DOT}": r"\cdot ",
    "\N{DOT OPERATOR}": r"\cdot ",
    "\N{GREEK SMALL LETTER PI}": r"\pi ",
    "\N{GREEK SMALL LETTER THETA}": r"\theta ",
    "\N{INFINITY}": r"\infty ",
    "\N{UNION}": r"\cup ",
    "\N{ELEMENT OF}": r"\in ",
    "\N{EMPTY SET}": r"\emptyset ",
    "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}",
    "\N{PLUS-MINUS SIGN}": r"\pm ",
    "\N{LESS-THAN OR EQUAL TO}": r"\le ",
    "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
    "\N{NOT EQUAL TO}": r"\ne ",
    "\N{ALMOST EQUAL TO}": r"\approx ",
    "\N{SQUARE ROOT}": r"\sqrt ",
    "\N{SUPERSCRIPT TWO}": "^2",
    "\N{SUPERSCRIPT THREE}": "^3",
    "\N{MATHEMATICAL LEFT ANGLE BRACKET}": r"\langle ",
    "\N{MATHEMATICAL RIGHT ANGLE BRACKET}": r"\rangle ",
    "\N{VULGAR FRACTION ONE HALF}": r"\frac{1}{2}",
    "\N{VULGAR FRACTION ONE QUARTER}": r"\frac{1}{4}",
    "\N{VULGAR FRACTION THREE QUARTERS}": r"\frac{3}{4}",
    "\N{DEGREE SIGN}": r"^\circ ",
    "\N{NO-BREAK SPACE}": " ",
    "\N{THIN SPACE}": r"\,",
    "\N{NARROW NO-BREAK SPACE}": r"\,",
}
_SYNONYMS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le", "geq": "ge",
    "leqslant": "le", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "varnothing": "emptyset", "lor": "vee",
    "langle": "(", "rangle": ")", "lbrack": "[", "rbrack": "]", "colon": ":", "degree": "^circ", "vert": "|",
    "equiv": "=", "lvert": "|", "rvert": "|", "mid": "|",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]{1,20})")
_THOUSANDS_MARK = re.compile(r"(?<=\d)(?:\{,\}|,\\!)\s{0,4}(?=\d{3}(?!\d))")
_THIN_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,;: ]|[ ~])\d{3})+(?![\d])")
_SPACING = re.compile(r"(?<!\\)\\[,;: ]|~|\\(?:q?quad|thinspace|enspace)(?![a-zA-Z])")
_DROPPED = re.compile(
    r"\\!|(?<!\\)\\[()\[\]]|\\(?:displaystyle|textstyle|left|right|middle|[bB]igg?[lrm]?|limits|bf|rm|it)(?![a-zA-Z])"
    r"|\\(?:tiny|small|large|Large|LARGE|huge|Huge|normalsize|boldmath)(?![a-zA-Z])"
)
_DOLLARS = re.compile(r"\\\$|\$\$?")
_INFIX = re.compile(r"\{([^{}]{1,64})\\(over|choose)(?![a-zA-Z])([^{}]{1,64})\}")
_LEAD_IN = re.compile(
    r"(?:\\text\{[^{}]{0,80}\b(?:is|are|equals?|be)\s{0,4}:?\s{0,4}\}\s{0,4}(?=\S)|\\approx(?![a-z])|\\therefore(?![a-z])|=)\s{0,4}"
)
_OR = re.compile(r"\s?,?\s?(?:\\text\{\s{0,8},?\s{0,8}or\s{0,8}\}|(?<![A-Za-z\\{])or(?![A-Za-z])|\\vee(?![a-zA-Z]))\s?")
_AND = re.compile(r"\s?,?\s?(?:\\text\{\s{0,8},?\s{0,8}and\s{0,8}\}|(?<![A-Za-z\\{])and(?![A-Za-z]))\s?")
_INEQUALITY = re.compile(r"[<>]|\\[lg]e(?![a-zA-Z])")
_SET_OF = re.compile(
    r"\\lbrace\s?(?:[A-Za-z](?:\s?\\in\s?\\mathbb\s?\{?\s?[A-Z]\s?\}?)?)\s?[|:]\s?([^{}|]{1,200}?)\s?\\rbrace\s?"
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_POWER_OF_PYTHON = re.compile(r"(?<=[\w)}])\s?\*\*\s?")
_INFINITY = re.compile(r"(?<![A-Za-z\\{])infinity(?![A-Za-z}])")
_LETTERS = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")
_WORD_CHARS = 4
"""Number of letters in a row from which they are a word, not a product."""
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|textit|mbox)\{[^{}]{0,200}\}")
_REALS = re.compile(r"(?:(?<=\\in)|(?<=\\in )|^)\\mathbb\s?\{?R\}?$")
_NOTHING = re.compile(r"^\\lbrace\s?\\rbrace$")


def clean(text: str) -> str:
    r"""Return the answer without delimiters, spacing commands, emphasis, lead-in, full stop and thousands separators.

    `\$` is kept as a unit, and `\{` becomes `\lbrace`. `and` and `or` between values become commas; in an answer with
    inequalities, `or` becomes `\cup`. Case is kept.
    """
    for symbol, replacement in _SYMBOLS.items():
        text = text.replace(symbol, replacement)
    text = _THIN_THOUSANDS.sub(_without_separators, _THOUSANDS_MARK.sub("", text))
    text = text.replace("{,}", ",").replace("{:}", ":").replace(r"\{", r"\lbrace ").replace(r"\}", r"\rbrace ")
    text = collapse(_DROPPED.sub("", _SPACING.sub(" ", text)))
    text = _COMMAND.sub(_synonym, _drop_dollars(text)).strip()
    text = _unwrap(_INFIX.sub(_prefix, text))
    if match := _LEAD_IN.match(text):
        text = text[match.end() :]
    text = _INFINITY.sub(r"\\infty", _POWER_OF_PYTHON.sub("^", text))
    text = _AND.sub(",", _OR.sub(r" \\cup " if _INEQUALITY.search(text) else ",", text))
    if match := _SET_OF.fullmatch(text):
        text = match[1]
    return _join_thousands(_REALS.sub(r"(-\\infty,\\infty)", _NOTHING.sub(r"\\emptyset", text))).strip()


def fold_case(left: str, right: str) -> tuple[str, str]:
    """Return both answers in lower case if they have the same letters in different case; else return them unchanged.

    If a letter occurs in upper and lower case within an answer, case matters: `X+1` and `1+x` are the same, `R^2-r^2`
    and `r^2-R^2` are not. Commands keep their case.
    """
    letters = _letters(left), _letters(right)
    if letters[0] == letters[1] or {one.lower() for one in letters[0]} != {one.lower() for one in letters[1]}:
        return left, right
    if any({one.swapcase() for one in found} & found for found in letters):
        return left, right
    return _lower(left), _lower(right)


def _letters(text: str) -> set[str]:
    found = (match[0] for match in _LETTERS.finditer(text))
    return set("".join(letters for letters in found if letters[0] != "\\" and len(letters) < _WORD_CHARS))


def _lower(text: str) -> str:
    return _LETTERS.sub(lambda match: match[0] if match[0][0] == "\\" else match[0].lower(), text)


def _synonym(match: re.Match[str]) -> str:
    found = _SYNONYMS.get(match[1])
    if found is None:
        return match[0]
    if found == "^circ":
        return r"^\circ"
    return f"\\{found}" if found[0].isalpha() else found


def _drop_dollars(text: str) -> str:
    r"""Delete `$` as a delimiter; keep `\$`, and write a single `$` before a number as `\$`."""
    marks = list(_DOLLARS.finditer(text))
    plain = [mark for mark in marks if mark[0] != r"\$"]
    if len(plain) == 1 and text[plain[0].end() :].lstrip()[:1].isdigit():
        return text.replace(r"\$", "").replace("$", r"\$")
    return re.sub(r"(?<!\\)\$", "", text)


def _unwrap(text: str) -> str:
    for _ in range(4):
        bare = text.strip()
        if bare.endswith(".") and not bare.endswith(".."):
            bare = bare[:-1].rstrip()
        if bare.startswith("**") and bare.endswith("**") and len(bare) > 4:
            bare = bare[2:-2]
        bare = unwrap_command(bare, WRAPPERS).strip()
        if bare.startswith("{") and bare.endswith("}") and closing_brace(bare, 1) == len(bare) - 1:
            bare = bare[1:-1].strip()
        if bare == text:
            break
        text = bare
    return text


def _prefix(match: re.Match[str]) -> str:
    return rf"\{'frac' if match[2] == 'over' else 'binom'}{{{match[1].strip()}}}{{{match[3].strip()}}}"


def _without_separators(match: re.Match[str]) -> str:
    return re.sub(r"\D", "", match[0])


def _join_thousands(text: str) -> str:
    """Delete thousands separators outside brackets: `1,000` is a number, but `(1,000)` has two elements."""
    if "," not in text:
        return text
    parts: list[str] = []
    depth = start = 0
    for index, character in enumerate(text):
        if character in "([":
            if depth == 0:
                parts.append(_THOUSANDS.sub(_without_separators, text[start:index]))
                start = index
            depth += 1
        elif character in ")]" and depth > 0:
            depth -= 1
            if depth == 0:
                parts.append(text[start : index + 1])
                start = index + 1
    tail = text[start:]
    parts.append(tail if depth or r"\lbrace" in text else _THOUSANDS.sub(_without_separators, tail))
    return "".join(parts)


def plain_form(text: str) -> str:
    r"""Return the comparable form of a cleaned answer without units; spaces are deleted, except between digits."""
    text = _TEXT.sub(lambda match: match[0][match[0].index("{") + 1 : -1], text)
    text = re.sub(r"(?<=\d) (?=\d)", "\0", text).replace(" ", "").replace("\0", " ")
    text = re.sub(r"\\sqrt([^{\[(\\])", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\d])\.(?=\d)", "0.", _brace_fractions(text))
    text = re.sub(r"(?<=[\^_])\{([A-Za-z\d])\}", r"\1", text.replace(r"+\infty", r"\infty"))
    return _LETTERS.sub(
        lambda match: match[0].lower() if len(match[0]) >= _WORD_CHARS and match[0][0] != "\\" else match[0], text
    )


def _brace_fractions(text: str) -> str:
    r"""Write `\frac12`, `\frac1{72}` and `\frac{1}2` with braces around both parts."""
    text = re.sub(r"\\frac([^{\\])([^{\\])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac([^{\\])(?=\{)", r"\\frac{\1}", text)
    return re.sub(r"(\\frac\{[^{}]{1,64}\})([^{\\])", r"\1{\2}", text)
