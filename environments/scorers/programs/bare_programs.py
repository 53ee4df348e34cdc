"""Find a program in text that has no fences around it, inside a sandbox: without the prose before, after and between.

Python's parser decides what is prose, so this runs where the program would: a text can make a parser slow, or crash it.
The sandbox contains no other file of Treadle, so this module imports only the standard library.
"""

import ast
import builtins
import re
import warnings

MAX_REMOVED = 300
"""Maximum number of pieces of prose that are removed; each costs one run of the parser."""
KNOWN = frozenset(dir(builtins)) | {"__file__", "__annotations__"}
MAX_INDENTS = 4
"""Maximum number of indentations of the function that are tried."""
HEADER = re.compile(r"(?:async\s+def|def)\s+\w+\s*\(|class\s+\w+\s*[(:]|@\w")
"""Beginning of a line that is never prose."""


def program_in(text: str, function: str) -> str:
    """Return the program that defines `function` in a text; the text itself if no part of it does.

    White space before the first line, as after a marker, is no indentation. The program may be indented as a whole.
    Lines that Python cannot parse are prose, unless they belong to a function or class; so are statements that only
    read a name which is not defined. An empty `function` means any program.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    name = re.escape(function) or r"[A-Za-z_]\w*"
    begins = rf"^([ \t]+)(?:(?:async[ \t]+)?def[ \t]+{name}\b|class[ \t]+{name}\b|{name}[ \t]*(?::[^=\n]*)?=(?!=))"
    # The smallest first, since a class may have a method of this name.
    indents = sorted(set(re.findall(begins, text, re.MULTILINE)), key=lambda indent: (len(indent), indent))[
        :MAX_INDENTS
    ]
    for lines in (text.lstrip(" \t").split("\n"), text.split("\n"), *(outdented(text, one) for one in indents)):
        program = without_prose(lines)
        if program is not None and program.body and defines(program, function):
            return "\n".join(lines)
    return text


def outdented(text: str, indent: str) -> list[str]:
    """Return the lines of a text without `indent`; lines that do not begin with it become empty."""
    lines = text.split("\n")
    return [line.removeprefix(indent) if line.startswith(indent) or not line.strip() else "" for line in lines]


def without_prose(lines: list[str]) -> ast.Module | None:
    """Blank out the lines that are prose, and return the program; None if the rest is not a program."""
    for _ in range(MAX_REMOVED):
        try:
            program = parsed("\n".join(lines))
        except SyntaxError as error:
            if not remove_piece(lines, place_of(error, lines)):
                return None
        except (ValueError, RecursionError, MemoryError):
            return None
        else:
            remove_unknown(lines, program)
            return program
    return None


def parsed(text: str) -> ast.Module:
    """Return a program. Raises SyntaxError, ValueError, RecursionError and MemoryError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def place_of(error: SyntaxError, lines: list[str]) -> int:
    """Return the index of the line that a syntax error is about."""
    # After prose such as `if you like:` the parser reports the next line, although that line is right.
    header = re.search(r"expected an indented block after .* on line (\d+)", error.msg)
    place = min(int(header[1]) if header else error.lineno or 1, len(lines)) - 1
    while place > 0 and not lines[place].strip():
        place -= 1
    return max(place, 0)


def remove_piece(lines: list[str], place: int) -> bool:
    """Blank out the piece that a line belongs to: a line without indentation, and the indented lines after it.

    Returns False if the piece is a function or a class, or if there is none.
    """
    start = place
    while start > 0 and is_inside(lines[start]) and not is_aside(lines, start):
        start -= 1
    if not lines[start].strip() or HEADER.match(lines[start]):
        return False
    end = start + 1
    while end < len(lines) and is_inside(lines[end]):
        end += 1
    lines[start:end] = [""] * (end - start)
    return True


def is_inside(line: str) -> bool:
    """Return whether a line is empty or indented."""
    return not line.strip() or line[0] in " \t"


def is_aside(lines: list[str], place: int) -> bool:
    """Return whether a line after an empty one is indented less than all lines since the last unindented line.

    Such a line, for example an item of a list, is no part of the code before it.
    """
    if not lines[place].strip() or lines[place - 1].strip():
        return False
    width = indent_of(lines[place])
    for line in reversed(lines[:place]):
        if line.strip() and indent_of(line) <= width:
            return not indent_of(line)
    return False


def indent_of(line: str) -> int:
    """Return the number of characters before the text of a line."""
    return len(line) - len(line.lstrip(" \t"))


def defines(program: ast.Module, function: str) -> bool:
    """Return whether a program binds the name `function`; true if the name is empty, or if there is an `import *`."""
    names = names_of(program)
    return not function or function in names or "*" in names


def names_of(program: ast.Module) -> set[str]:
    """Return all names that a program binds anywhere, and `*` if it has an `import *`."""
    names = set()
    for node in ast.walk(program):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        else:  # functions, classes, captures of patterns and of exceptions
            names.update(one for key in ("name", "rest") if isinstance(one := getattr(node, key, None), str))
    return names


def remove_unknown(lines: list[str], program: ast.Module) -> None:
    """Blank out statements like `Done` and `Complexity: O(n)`, which only read a name that is not defined."""
    known = names_of(program) | KNOWN
    if "*" in known:
        return
    taken = [line for one in program.body for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)]
    for one in program.body:
        value = (isinstance(one, ast.AnnAssign) and one.value) or one
        read = {node.id for node in ast.walk(value) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        own = range(one.lineno, (one.end_lineno or one.lineno) + 1)
        if isinstance(one, ast.Expr | ast.AnnAssign) and read - known and all(taken.count(line) == 1 for line in own):
            for line in own:
                lines[line - 1] = ""
