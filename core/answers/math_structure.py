r"""Find the structure of an answer: label (`x = `), tuple, set, interval, union, list, matrix, inequality."""

from __future__ import annotations

import re
from dataclasses import dataclass

from treadle.core.answers.math_number import parse_number

MAX_ELEMENTS = 64

_OPENING = ("(", "[", r"\lbrace")
_CLOSING = (")", "]", r"\rbrace")
_BRACKET = re.compile(r"\\[lr]brace(?![a-z])|\\cup(?![a-z])|[()\[\]{},;]")
_RELATION_OR_BRACKET = re.compile(r"[{}()\[\]]|<=?|>=?|\\[lg]e(?![a-zA-Z])|(?<![<>!:=\\])=(?!=)")
_SUBSCRIPT = r"(?:_(?:\{[^{}]{1,20}\}|\\?[A-Za-z]+|\d))?"
_GREEK = (
    r"\\(?:(?:var)?(?:epsilon|theta|rho|sigma|phi)|alpha|beta|gamma|delta|zeta|eta|iota|kappa|lambda|mu|nu|xi|tau|chi|psi"
    r"|omega|ell|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega)(?![A-Za-z])"
)
_NAME = rf"(?:[A-Za-z]|{_GREEK}){_SUBSCRIPT}'{{0,3}}"
_LABEL = re.compile(
    rf"(?:{_NAME}(?:\^(?:\{{-1\}}|-1))?(?:\s?\([^()=]{{1,40}}\))?"
    r"|\\(?:text|mathrm|operatorname|mathbf|overline|angle|triangle|vec|widehat|hat|bar)\s?\{[^{}]{1,60}\}(?:\([^()=]{1,40}\))?"
    r"|(?:m\s?)?\\angle\s?[A-Z]{1,3}|\|?[A-Z]{2,4}\|?|[A-Za-z]{4,20}(?:\s[A-Za-z]{2,20}){0,3}|\\frac\s?\{d[a-z]\}\s?\{d[a-z]\})"
)
_VARIABLE = re.compile(rf"(?:[A-Za-z]|{_GREEK}){_SUBSCRIPT}")
_MEMBERSHIP = re.compile(r"([A-Za-z])\s?\\in(?![A-Za-z])\s?")
_TUPLE_LABEL = re.compile(r"\(([A-Za-z][A-Za-z_\d]{0,3}(?:\s?,\s?[A-Za-z][A-Za-z_\d]{0,3}){1,8})\)\s?=\s?(?=\()")
_MATRIX = re.compile(
    r"(?P<open>[(\[]?)\s?\\begin\{(?P<kind>[pbBvV]?matrix|array)\}(?:\{[lcr| ]{0,20}\})?"
    r"(?P<body>(?:(?!\\begin|\\end).){0,1500}?)\\end\{(?P=kind)\}\s?(?P<close>[)\]]?)",
    re.DOTALL,
)
_NUMBERED = re.compile(r"([A-Za-z])_(\d{1,2})")
_UNKNOWNS = frozenset("xyztr")
"""Letters whose numbered values (`x_1 = 1, x_2 = 2`) are the roots of an equation, in any order."""
_ABSOLUTE = re.compile(rf"\|\s?((?:[A-Za-z]|{_GREEK}){_SUBSCRIPT})\s?\|")
_SIGN_OF_TWO = re.compile(r"\\(pm|mp)(?![a-zA-Z])\s?")


@dataclass(frozen=True, slots=True)
class ElementGroup:
    """Elements with their brackets.

    `kind` is `()`, `[]`, `(]`, `[)`, `{}`, `list` (no brackets), `union`, `RxC` for a matrix of R rows and C columns,
    or `named`: a value for each of `labels`. A list of the values of one variable (`x = 1, 2`) has one label.
    """

    kind: str
    elements: tuple[str, ...]
    labels: tuple[str, ...] = ()

    @property
    def unknown(self) -> str:
        """The letter whose values these are: x of `x = 1, 2` and of `x_1 = 1, x_2 = 2`; else an empty string."""
        if len(self.labels) == 1:
            return self.labels[0]
        matches = [_NUMBERED.fullmatch(label) for label in self.labels]
        letters = {match[1] if match else "" for match in matches}
        return letters.pop() if len(letters) == 1 and letters <= _UNKNOWNS else ""

    def in_label_order(self) -> tuple[str, ...]:
        """Return named values in the order of `x, y` or `a_1, a_2`; as written if the labels have no such order."""
        matches = [_NUMBERED.fullmatch(label) for label in self.labels]
        numbered = [match for match in matches if match]
        if len(numbered) == len(self.labels) and len({match[1] for match in numbered}) == 1:
            ranks = [int(match[2]) for match in numbered]
        elif all(len(label) == 1 for label in self.labels):
            ranks = [ord(label) for label in self.labels]
            if max(ranks) - min(ranks) != len(ranks) - 1:
                return self.elements
        else:
            return self.elements
        return tuple(element for _, element in sorted(zip(ranks, self.elements, strict=True)))

    @property
    def unordered(self) -> bool:
        """True if the order of the elements has no meaning."""
        return self.kind in ("{}", "list", "union")


def split_label(text: str) -> tuple[str, str]:
    r"""Return label and value of `x = 5`, `f(x) = …`, `\text{Area} = …`; the label is empty if the text has none.

    In `S = 2 \cdot 3 = 6` the value is what follows the last sign. `x \in [1,2]` has a label too. Products such as
    `xyz` are no labels, and a list of several labels has none.
    """
    if match := _MEMBERSHIP.match(text):
        return match[1], text[match.end() :]
    if any("cup" not in mark[0] for mark in _top_level(list(_BRACKET.finditer(text)))):
        return "", text
    marks = _relations(text)
    if not marks or any(mark[0] != "=" for mark in marks):
        return "", text
    if _LABEL.fullmatch(text[: marks[0].start()].strip()) is None:
        return "", text
    return _bare(text[: marks[0].start()]), text[marks[-1].end() :].strip()


def _bare(label: str) -> str:
    return (
        re.sub(r"\\(?:text|mathrm|operatorname|mathbf)\s?\{([^{}]*)\}", r"\1", label)
        .replace(" ", "")
        .replace("{", "")
        .replace("}", "")
    )


def has_equation(text: str) -> bool:
    """Return whether the text is an equation. Bounds of a sum (`k=1` in braces) do not count."""
    return any(mark[0] == "=" for mark in _relations(text))


def has_relation(text: str) -> bool:
    """Return whether the text is an equation or an inequality."""
    return bool(_relations(text))


def _relations(text: str) -> list[re.Match[str]]:
    """Return the relation signs outside of brackets."""
    found, depth = [], 0
    for match in _RELATION_OR_BRACKET.finditer(text):
        if match[0] in "{([":
            depth += 1
        elif match[0] in "})]":
            depth -= 1
        elif depth <= 0:
            found.append(match)
    return found


def split_interval(text: str) -> tuple[str, ElementGroup] | None:
    """Return variable and interval of `x > 3`, `1 < x \\le 2` or `|x| < 3`; None if it is not such an inequality."""
    marks = _relations(text)
    if not 1 <= len(marks) <= 2 or any(mark[0] == "=" for mark in marks):
        return None
    ends = [0, *(mark.end() for mark in marks)]
    starts = [*(mark.start() for mark in marks), len(text)]
    parts = [text[start:end].strip() for start, end in zip(ends, starts, strict=True)]
    down = [mark[0].startswith((">", r"\ge")) for mark in marks]
    is_closed = [mark[0].endswith("=") or mark[0] in (r"\le", r"\ge") for mark in marks]
    if len(set(down)) != 1 or not all(parts) or any(_top_level(list(_BRACKET.finditer(part))) for part in parts):
        return None
    if len(parts) == 2 and (absolute := _split_absolute(parts, down[0], is_closed[0])) is not None:
        return absolute
    if down[0]:
        parts, is_closed = parts[::-1], is_closed[::-1]
    index = 1 if len(parts) == 3 else 0 if _VARIABLE.fullmatch(parts[0]) else 1
    name = parts[index]
    if not _VARIABLE.fullmatch(name) or any(
        re.search(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", part)
        for at, part in enumerate(parts)
        if at != index
    ):
        return None
    if len(parts) == 3:
        low, high, opening, closing = parts[0], parts[2], is_closed[0], is_closed[1]
    elif index == 0:
        low, high, opening, closing = r"-\infty", parts[1], False, is_closed[0]
    else:
        low, high, opening, closing = parts[0], r"\infty", is_closed[0], False
    return name, ElementGroup(("[" if opening else "(") + ("]" if closing else ")"), (low, high))


def _split_absolute(parts: list[str], is_down: bool, is_closed: bool) -> tuple[str, ElementGroup] | None:
    """Return variable and values of `|x| < 3` or `|x| >= 3`, for a positive number."""
    if _ABSOLUTE.fullmatch(parts[1]):
        parts, is_down = parts[::-1], not is_down
    match, bound = _ABSOLUTE.fullmatch(parts[0]), parse_number(parts[1])
    if match is None or bound is None or bound.value <= 0:
        return None
    opening, closing = "[]" if is_closed else "()"
    if not is_down:
        return match[1], ElementGroup(opening + closing, (f"-{parts[1]}", parts[1]))
    outside = (rf"(-\infty,-{parts[1]}{closing}", rf"{opening}{parts[1]},\infty)")
    return match[1], ElementGroup("union", outside)


def split_group(text: str) -> ElementGroup | None:
    r"""Split a cleaned answer into elements; return None if it is a single value, or more than MAX_ELEMENTS.

    `x = 1, 2` is a list of values, `x = 1, y = 2` a value for each label, and an element with `\pm` becomes two.
    """
    if match := _TUPLE_LABEL.match(text):
        labels = tuple(name.strip() for name in match[1].split(","))
        group = split_group(text[match.end() :])
        if group is None or group.kind != "()" or len(group.elements) != len(labels):
            return group
        return ElementGroup("named", group.elements, labels)
    if (matrix := _split_matrix(text)) is not None:
        return matrix
    group = _split_brackets(text)
    if group is None:
        both = _both_signs(text)
        return _without_labels(ElementGroup("list", tuple(both))) if len(both) == 2 else None
    if group.kind in ("{}", "list"):
        group = ElementGroup(group.kind, tuple(one for element in group.elements for one in _both_signs(element)))
    if group.kind == "[]" and len(group.elements) != 2:
        group = ElementGroup("()", group.elements)
    return _without_labels(group) if group.kind == "list" else group


def _split_brackets(text: str) -> ElementGroup | None:
    kind = "list"
    body = text
    marks = list(_BRACKET.finditer(text))
    offset = 0
    if _is_enclosed(text, marks):
        first, last = marks[0], marks[-1]
        kind = ("{" if "brace" in first[0] else first[0]) + ("}" if "brace" in last[0] else last[0])
        body = text[first.end() : last.start()]
        marks = marks[1:-1]
        offset = first.end()
    separators = _top_level(marks)
    cuts = [mark for mark in separators if "cup" in mark[0]]
    if cuts and not offset:
        kind = "union"
    else:
        cuts = [mark for mark in separators if "cup" not in mark[0]]
        if not cuts and (not offset or kind not in ("()", "{}")):
            return None
    if len(cuts) >= MAX_ELEMENTS:
        return None
    starts = [0, *(mark.end() - offset for mark in cuts)]
    ends = [*(mark.start() - offset for mark in cuts), len(body)]
    elements = tuple(body[start:end].strip() for start, end in zip(starts, ends, strict=True))
    if kind == "list":
        elements = tuple(element for element in elements if element)  # `1, 2, and 3` has two commas before 3
        if len(elements) < 2:
            return None
    return ElementGroup(kind, elements)


def _both_signs(element: str) -> list[str]:
    if not _SIGN_OF_TWO.search(element):
        return [element]
    return [_signed(element, {"pm": "+", "mp": "-"}), _signed(element, {"pm": "-", "mp": "+"})]


def _signed(element: str, signs: dict[str, str]) -> str:
    signed = _SIGN_OF_TWO.sub(lambda match: signs[match[1]], element)
    return re.sub(r"(^|[=(,{]\s?)\+", r"\1", signed)


def _without_labels(group: ElementGroup) -> ElementGroup:
    """Remove the labels of values of one variable (`x = 1, x = 2`), or name the values (`x = 1, y = 2`)."""
    pairs = [split_label(element) for element in group.elements]
    labels = [label for label, _ in pairs]
    if not labels[0] or (set(labels[1:]) & {""} and set(labels[1:]) != {""}):
        return group
    values = tuple(value for _, value in pairs)
    if set(labels[1:]) <= {"", labels[0]}:
        return ElementGroup(group.kind, values, (labels[0],))
    return ElementGroup("named", values, tuple(labels)) if len(set(labels)) == len(labels) else group


def _split_matrix(text: str) -> ElementGroup | None:
    match = _MATRIX.fullmatch(text)
    if match is None or match["kind"] in ("vmatrix", "Vmatrix"):
        return None
    rows = [row.split("&") for row in re.split(r"\\\\(?:\[[^\]]{0,10}\])?", match["body"]) if row.strip()]
    if not rows or len({len(row) for row in rows}) != 1 or len(rows) * len(rows[0]) > MAX_ELEMENTS:
        return None
    return ElementGroup(f"{len(rows)}x{len(rows[0])}", tuple(cell.strip() for row in rows for cell in row))


def _is_enclosed(text: str, marks: list[re.Match[str]]) -> bool:
    """Return whether the first bracket opens at the start and closes at the very end of the text."""
    if len(marks) < 2 or marks[0].start() != 0 or marks[-1].end() != len(text):
        return False
    if marks[0][0] not in _OPENING or marks[-1][0] not in _CLOSING:
        return False
    if (marks[0][0] == r"\lbrace") != (marks[-1][0] == r"\rbrace"):
        return False
    depth = 0
    for mark in marks:
        depth += _step(mark[0])
        if depth == 0:
            return mark is marks[-1]
    return False


def _top_level(marks: list[re.Match[str]]) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []
    depth = 0
    for mark in marks:
        depth += _step(mark[0])
        if depth == 0 and (mark[0] in ",;" or "cup" in mark[0]):
            found.append(mark)
    return found


def _step(bracket: str) -> int:
    if bracket in (*_OPENING, "{"):
        return 1
    return -1 if bracket in (*_CLOSING, "}") else 0
