"""The program in an answer: fenced, bare, with text around it, or as the published program takes it."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.dialects.base import Segment
from treadle.environments.colbench.dialect import ColbenchDialect
from treadle.environments.scorers.programs.answers import answer_of, find_legacy_program, find_program
from treadle.environments.scorers.programs.bare_programs import program_in
from treadle.environments.stored_rollout import StoredRollout

CODE = "def f(x):\n    return x\n"


def stored(*parts: tuple[str, str], status: str = "answered") -> StoredRollout:
    return StoredRollout(status, False, [Segment(kind, text, 0, 0) for kind, text in parts], (), (), None, None)


def program_of(answer: str, function: str = "f") -> str:
    """Return the program of an answer, as the sandbox defines it."""
    found = find_program(answer, function)
    return program_in(found.text, function) if found.is_bare else found.text


@pytest.mark.parametrize(
    "answer",
    [
        CODE,
        f"```python\n{CODE}```",
        f"```\n{CODE}```",
        f"Here it is:\n```py\n{CODE}```\nIt returns x.",
        f"```python\nprint(f(1))\n```\n```python\n{CODE}```",
        f"```python\ndef f(x):\n    return None\n```\nBetter:\n```python\n{CODE}```",
        f"```python\n{CODE}```\n```python\nf(1)\n```",
        f"Here it is:\n\n{CODE}\nThis returns what you need.",
        f"```text\nf returns x\n```\n```python3\n{CODE}```",
        CODE.replace("\n", "\r\n"),
        f" {CODE}",
        "\n    def f(x):\n        return x\n",
        "Here it is:\n  ```python\n  def f(x):\n      return x\n  ```",
        "ZERO = 0\n\ndef f(x):\n    return x + ZERO\n",
        "Here it is:\n\nONE, ZERO = 1, 0\nSUM_: int = ONE + ZERO\n\ndef f(x):\n    return x * SUM_\nThis is all.",
        "try:\n    import numpy_that_is_not_there\nexcept ImportError:\n    ZERO = 0\ndef f(x):\n    return x + ZERO",
        "Here it is:\n\nf = lambda x: x\n",
        f"Note: f(x) = x holds.\n{CODE}",
        f"{CODE}\nNote: this returns x itself.",
        f"{CODE}```",
        f"{CODE}```\nThis returns x. It doesn't fail.",
        f"{CODE.rstrip()}```",
        f"{CODE}```\nTry it:\n```python\nf(1)\n```",
        f"~~~python\n{CODE}~~~",
        f"```python\n{CODE.rstrip()}```",
        f"```python\n{CODE.rstrip()}```\nTry it:\n```python\nf(1)\n```",
        f"Here it is: ```python\n{CODE}```",
        f"```{CODE}```",
        f"```python {CODE}```",
        f"```{{python}}\n{CODE}```",
        "Use ```python f = lambda x: x``` here.",
        f"```python\n{CODE}``` This returns x.",
        f"```python\n{CODE}\nThis returns x.",
        f"```python\n{CODE}\n```python\nf(1)\n```",
        f"Complexity: O(n)\n\n{CODE}\nComplexity: O(1)\n\nDone",
        f"Code\n\n{textwrap.indent(CODE, '    ')}\nIt returns\n  - what it gets",
        f"If you like:\n{CODE}\nif possible:",
        f"{CODE}\n  * works\n  * is fast",
        f"\n    class A:\n        def f(self):\n            pass\n{textwrap.indent(CODE, '    ')}",
        "def f(x):\n    return g(x)\n\nWith a helper:\n\ndef g(x):\n    return x\n",
    ],
)
def test_program_is_found_wherever_it_is(answer: str) -> None:
    scope: dict[str, object] = {}
    exec(program_of(answer), scope)
    assert callable(scope["f"]) and scope["f"](3) == 3


def test_blocks_without_the_function_are_one_program() -> None:
    answer = "```python\nimport math\n```\n```python\ng = math.sqrt\n```"
    assert program_of(answer) == "import math\n\ng = math.sqrt\n"


@pytest.mark.parametrize(
    "answer",
    [
        "def f(x):\n    y = = x\n    return x",
        "def f(x):\n    if x:\n        y = x\n\n    return x +\n",
        "def f(x):\n    y = x\n  y = x\n    return x",
        "class A:\n    x = = 1\n\ndef f(x):\n    return x",
        "```python\ndef f(x):\n    return x\nprint f(1)\n```",
        "def f(x):",
        "\0",
        "(" * 10_000 + "def f(x):",
    ],
)
def test_broken_programs_stay_broken(answer: str) -> None:
    with pytest.raises((SyntaxError, ValueError, MemoryError)):
        compile(program_of(answer), "answer", "exec")


STATEMENTS = (
    "import math",
    "from collections import (\nOrderedDict,\n    deque,\n)",
    "import os.path as p; q = p.join",
    'TEXT = """\nThis is no prose, is it?\n    ~ it is not\n\n  \t:\n"""',
    "TABLE = {\n'a': [1,\n2],\n}",
    "limit: int = 3",
    "@staticmethod\ndef helper(a, *b, c=(1, 2), **d):\n    'Do: add.'\n\n    # a comment\n    return a + \\\n c[0]",
    "class Node(dict):\n\n    def f(self, x):\n        return [x]\n\n    @property\n    def size(self): return 3",
    "try:\n    import numpy\nexcept ImportError as error:\n    numpy = None\nelse:\n    pass\nfinally:\n    pass",
    "if limit_of := 3:\n    low = 1\nelif limit_of:\n    low = 2\nelse:\n    low = 3",
    "for one in range(3):\n\tprint(one)",
    "with open(__file__) as source:\n    pass",
    "# Note: a comment, with `code` in it",
    "first, *rest = [1, 2, 3]",
    "async def wait(x):\n    await x",
    "print('don\\'t')",
    "lambda_ = (lambda f: f)(1)",
    "[k for k in 'abc']",
    "None",
    "match 3:\n    case {'a': found, **others}: pass\n    case [one, *many] | (one, *many) as both: pass",
    "@len\nclass B: pass",
)  # fmt: skip
DEFINITIONS = (
    "def f(x):\n    return x",
    "def f(x: 'int') -> int: return x",
    "async def f(x):\n    return x\n\n\nprint(f)",
    "f = lambda x: (\nx)",
    "def f(\n    x,\n):\n    def g():\n        return x\n\n    return g()",
    "class f:\n    pass",
)
PROSE = (
    "Here is the function:",
    "Note: this returns the sum of all of them.",
    "It doesn't need more; try (it (now.",
    "1. First, it counts.",
    "- an item of a list",
    "> quoted",
    "Complexity: O(n)",
    "Thanks!",
    "Done",
    "“Quotes” — and 🙂",
    "if you like:",
    "Returns: unknown_thing",
    "For example, f(3) gives 3, and f('x') \"x\".",
    "Ends with a backslash \\",
    "I hope that helps? Let me know",
)
WORDS = st.lists(st.text("abcdeghijklmnopqrstuvwxyz'é", min_size=2, max_size=8), min_size=4, max_size=9)
TOLD = st.lists(st.sampled_from(PROSE) | WORDS.map(lambda words: f"So {' '.join(words)}."), min_size=1, max_size=4)
PROGRAMS = st.tuples(
    st.lists(st.sampled_from(STATEMENTS), max_size=3),
    st.sampled_from(DEFINITIONS),
    st.lists(st.sampled_from(STATEMENTS), max_size=3),
    st.sampled_from(["\n", "\n\n", "\n\n\n"]),
).map(lambda parts: parts[3].join([*parts[0], parts[1], *parts[2]]) + "\n")


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, str]:
    """Return a valid program, and an answer with it, in one of the forms in which models write."""
    program = draw(PROGRAMS)
    before, after = ("\n".join(draw(TOLD)) if draw(st.booleans()) else "" for _ in range(2))
    fence = draw(st.sampled_from(["", "```", "````", "~~~"]))
    text = program
    if fence:
        opening = fence + draw(st.sampled_from(["", "python", "py", "Python", " python title=f.py", "{.python}"]))
        is_late = before and fence[0] == "`" and draw(st.booleans())
        text = f"{'This is it: ' if is_late else ''}{opening}\n{program}{fence}\n"
    text = textwrap.indent(text, draw(st.sampled_from(["", "", "    ", "  ", "\t"])))
    is_first = not before and not fence and not text.startswith((" ", "\t"))
    start = draw(st.sampled_from([" ", "", "\n"])) if is_first else "\n"
    answer = start + "\n\n".join(part for part in (before, text, after) if part)
    return program, answer.replace("\n", "\r\n") if draw(st.booleans()) else answer


@given(answers())
def test_any_program_is_found_whole_in_any_form(given_: tuple[str, str]) -> None:
    program, answer = given_
    assert ast.dump(ast.parse(program_of(answer))) == ast.dump(ast.parse(program)), answer


@given(st.text() | st.text("`~ \ndef(x):py'\"\\#"), st.sampled_from(["f", "", "x"]))
def test_no_text_is_an_error(text: str, function: str) -> None:
    assert isinstance(program_of(text, function), str) and isinstance(find_legacy_program(text), str | None)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("\ncode1 ", "\ncode1 "),
        ("a```python\nx\n```b```python\ny\n```", "\nx\n"),
        ("a```\nx\n```b", "\nx\n"),
        ("```py\nx\n```", "py\nx\n"),
        ("x  # import os", None),
        ("from sys import path", None),
        ("the_exit(1)", None),
        ("quit(", None),
    ],
)
def test_legacy_takes_the_first_block_and_refuses_texts(answer: str, program: str | None) -> None:
    assert find_legacy_program(answer) == program


def test_answer_is_the_marked_one_or_the_last_turn_of_a_full_dialogue() -> None:
    marked = [(one.kind, one.text) for one in ColbenchDialect().segments("hm OUTPUT: ok I WANT TO ANSWER: c")]
    assert answer_of(stored(("text", "What?"), ("user", "x"), *marked)) == " c"
    assert answer_of(stored(("answer", "<answer>\nc\n</answer>"))) == "\nc\n"
    assert (
        answer_of(stored(("answer", "I WANT TO ANSWER: a"), ("user", "x"), ("answer", "I WANT TO ANSWER: b"))) == " b"
    )
    twice = ColbenchDialect().segments("ok I WANT TO ANSWER:\ncode1 I WANT TO ANSWER: code2")
    assert answer_of(stored(*((one.kind, one.text) for one in twice))) == "\ncode1 "
    turns = (("text", "What?"), ("frame", ""), ("user", "x"), ("private", "hm OUTPUT:"), ("text", " c"))
    assert answer_of(stored(*turns, status="max_turns")) == " c"
    assert answer_of(stored(*turns, status="context_full")) is None
