"""Decode the tests of a programming task from its payload; each test makes a program and checks what that prints.

Papers: arXiv 2508.13167, rewards of the code agent. Expected outputs stay outside the sandbox: a program prints its
result, which is compared here. Only assertions (`check`) run in the sandbox, together with the tested program.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, Protocol

from treadle.agent.sandbox.process import Program
from treadle.agent.tools.workspace.files import BadTask

MAX_OUTPUT_CHARS = 256 * 1024
"""Longest expected output: the sandbox keeps about 1 MiB of what a program prints."""
MAX_TESTS = 10_000

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_CHECK = re.compile(r"^def check\(.*\n(?:[ \t]*\n)*([ \t]+)", re.MULTILINE)
_RESULT = "treadle-result:"
_PRELUDE = """
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from copy import deepcopy
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, nlargest, nsmallest
from itertools import accumulate, chain, combinations, count, groupby, permutations, product
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, sqrt
from typing import *
"""
"""Imports that function-style solutions omit, since the service from which the tasks come adds them. For the same
reason the recursion limit is raised."""
_DEFINE = f"""
import json, sys, types
sys.setrecursionlimit(50_000)
given, told = sys.stdin, sys.stdout
task = json.loads(given.readline())
module = sys.modules["solution"] = types.ModuleType("solution")
scope = module.__dict__
exec(compile({_PRELUDE!r} + task["prefix"], "<prefix>", "exec"), scope)
exec(compile(task["solution"], "<solution>", "exec"), scope)
"""
_CALL = f"""{_DEFINE}
name = task["name"]
function = scope[name] if name in scope else getattr(scope["Solution"](), name)
def plain(value):
    return value.item() if hasattr(value, "item") else list(value)
result = json.dumps(function(*task["arguments"]), default=plain)
told.write("\\n{_RESULT}" + result + "\\n")
"""
_ASSERT = f"""{_DEFINE}
import ast
test = json.loads(given.readline())
tree = ast.parse(test["code"])
check = next(part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == "check")
asserted = [part for part in check.body if isinstance(part, ast.Assert)]
if len(asserted) == test["count"]:
    check.body = [part for part in check.body if part not in asserted or part is asserted[test["number"]]]
elif test["number"]:  # The first test holds all of it.
    check.body = [ast.Pass()]
exec(compile(ast.fix_missing_locations(tree), "<check>", "exec"), scope)
scope["check"](eval(test["entry_point"], scope))
told.write("\\n{_RESULT}" + test["token"] + "\\n")
"""


class ProgramTest(Protocol):
    """One test of a solution; `is_assertion` is true if its program runs code of the test as well."""

    is_assertion: ClassVar[bool]

    def program(self, solution: str) -> Program:
        """Return the program that runs the test."""
        ...

    def is_passed(self, stdout: str) -> bool:
        """Return whether the test is passed, given the whole output of a program that exited with code 0."""
        ...


@dataclass(frozen=True, slots=True)
class StdinTest:
    """The solution reads `stdin` and has to print `expected`."""

    is_assertion: ClassVar[bool] = False
    stdin: str
    expected: str

    def program(self, solution: str) -> Program:
        """See `ProgramTest`."""
        return Program(solution, self.stdin, prints_value=False)

    def is_passed(self, stdout: str) -> bool:
        """See `ProgramTest`."""
        return same_output(stdout, self.expected)


@dataclass(frozen=True, slots=True)
class CallTest:
    """The function `name` of the solution, or the method of its class `Solution`, has to return `expected`."""

    is_assertion: ClassVar[bool] = False
    name: str
    arguments: Sequence[Any]
    expected: Any
    prefix: str = ""

    def program(self, solution: str) -> Program:
        """See `ProgramTest`."""
        task = {"prefix": self.prefix, "solution": solution, "name": self.name, "arguments": self.arguments}
        return Program(_CALL, json.dumps(task) + "\n", prints_value=False)

    def is_passed(self, stdout: str) -> bool:
        """See `ProgramTest`. Some data sets wrap every expected value in a list."""
        wrapped = self.expected[0] if isinstance(self.expected, list) and len(self.expected) == 1 else self.expected
        try:
            result = json.loads(_result(stdout) or "")
            return _equal(result, self.expected) or _equal(result, wrapped)
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True)
class AssertionTest:
    """One assertion of a function `check(candidate)` has to hold for the solution's entry point."""

    is_assertion: ClassVar[bool] = True
    prefix: str
    code: str
    entry_point: str
    number: int
    count: int
    _token: str = field(default_factory=lambda: secrets.token_hex(16), compare=False)

    @cached_property
    def _test(self) -> str:
        places = {"number": self.number, "count": self.count, "entry_point": self.entry_point, "token": self._token}
        return json.dumps({"code": self.code, **places})

    def program(self, solution: str) -> Program:
        """See `ProgramTest`. The program reads the test from its input only after it has defined the solution."""
        task = {"prefix": self.prefix, "solution": solution}
        return Program(_ASSERT, f"{json.dumps(task)}\n{self._test}\n", prints_value=False)

    def is_passed(self, stdout: str) -> bool:
        """See `ProgramTest`. A program that exits before the assertion does not print the test's secret token."""
        return _result(stdout) == self._token


def read_tests(payload: Mapping[str, Any]) -> list[ProgramTest]:
    """Return the tests in the field `tests` of a payload: an object, or its JSON text.

    The object has `stdin` and `expected_output`; or `inputs` and `outputs`, with `fn_name` for calls of a function; or
    `import_prefix`, `test_code` and `entry_point`. Raises BadTask, which quotes nothing of the payload.
    """
    given = payload.get("tests")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise BadTask("tests is no JSON") from None
    if not isinstance(given, Mapping):
        raise BadTask("tests is no object")
    given = {name: value for name, value in given.items() if value is not None}
    if "stdin" in given:
        tests = _stdin_tests(given, "stdin", "expected_output")
    elif "inputs" in given and given.get("fn_name"):
        tests = _call_tests(given)
    elif "inputs" in given:
        tests = _stdin_tests(given, "inputs", "outputs")
    elif "test_code" in given:
        tests = _assertion_tests(given)
    else:
        raise BadTask("tests has no stdin, inputs or test_code; import the hidden tests of the task first")
    if not tests:
        raise BadTask("tests has no test")
    return tests


def same_output(printed: str, expected: str) -> bool:
    """Compare outputs line by line without outer white space; tokens that are numbers are compared as decimals."""
    ours, theirs = _lines(printed), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    tokens, expected = ours.split(), theirs.split()
    return len(tokens) == len(expected) and all(map(_same_token, tokens, expected))


def _same_token(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    return bool(_NUMBER.fullmatch(ours) and _NUMBER.fullmatch(theirs)) and Decimal(ours) == Decimal(theirs)


def _equal(result: object, expected: object) -> bool:
    """Compare values as JSON has them: true is not 1."""
    if isinstance(result, bool) or isinstance(expected, bool):
        return result is expected
    if isinstance(result, list) and isinstance(expected, list):
        return len(result) == len(expected) and all(map(_equal, result, expected))
    if isinstance(result, dict) and isinstance(expected, dict):
        return result.keys() == expected.keys() and all(_equal(result[key], expected[key]) for key in result)
    return result == expected


def _result(stdout: str) -> str | None:
    """Return the last result that a program of this module printed; None without one."""
    start = stdout.rfind(f"\n{_RESULT}")
    return None if start < 0 else stdout[start + len(_RESULT) + 1 :].partition("\n")[0]


def _pairs(given: Mapping[str, Any], ask: str, answer: str) -> list[tuple[Any, Any]]:
    asked, answered = given.get(ask), given.get(answer)
    if not isinstance(asked, list) or not isinstance(answered, list) or len(asked) != len(answered):
        raise BadTask(f"tests.{ask} and tests.{answer} are no lists of one length")
    if len(asked) > MAX_TESTS:
        raise BadTask(f"tests.{ask} has more than {MAX_TESTS} items")
    return list(zip(asked, answered, strict=True))


def _stdin_tests(given: Mapping[str, Any], ask: str, answer: str) -> list[ProgramTest]:
    tests: list[ProgramTest] = []
    for stdin, expected in _pairs(given, ask, answer):
        # Some data sets have lists of lines instead of texts.
        texts = ["\n".join(map(str, text)) if isinstance(text, list) else text for text in (stdin, expected)]
        if not all(isinstance(text, str) for text in texts):
            raise BadTask(f"tests.{ask} and tests.{answer} are no lists of texts")
        if len(texts[1]) > MAX_OUTPUT_CHARS:
            raise BadTask(f"tests.{answer} has an output of more than {MAX_OUTPUT_CHARS} characters")
        tests.append(StdinTest(*texts))
    return tests


def _call_tests(given: Mapping[str, Any]) -> list[ProgramTest]:
    name, prefix = given["fn_name"], given.get("import_prefix", "")
    if not isinstance(name, str) or not name.isidentifier():
        raise BadTask("tests.fn_name is no name of a function")
    if not isinstance(prefix, str):
        raise BadTask("tests.import_prefix is no text")
    return [
        CallTest(name, _arguments(inputs), _value(output), prefix)
        for inputs, output in _pairs(given, "inputs", "outputs")
    ]


def _arguments(inputs: object) -> list[Any]:
    """Return the arguments of one call: a list, or a text with one JSON value on each line."""
    if isinstance(inputs, list):
        return inputs
    if not isinstance(inputs, str):
        raise BadTask("tests.inputs has items that are neither lists nor texts")
    try:
        return [json.loads(line) for line in inputs.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        raise BadTask("tests.inputs has a line that is no JSON") from None


def _value(output: object) -> object:
    if not isinstance(output, str):
        return output
    try:
        return json.loads(output)
    except (ValueError, RecursionError):
        return output


def _assertion_tests(given: Mapping[str, Any]) -> list[ProgramTest]:
    texts = [given.get(name, "") for name in ("import_prefix", "test_code", "entry_point")]
    if not all(isinstance(text, str) for text in texts) or not texts[2].strip():
        raise BadTask("tests.import_prefix, tests.test_code and tests.entry_point are no texts")
    prefix, code, entry_point = texts
    body = _CHECK.search(code)
    if body is None:
        raise BadTask("tests.test_code has no function check(candidate)")
    # Assertions in loops and branches of `check` do not count as separate tests.
    count = max(1, len(re.findall(rf"^{body[1]}assert\b", code, re.MULTILINE)))
    if count > MAX_TESTS:
        raise BadTask(f"tests.test_code has more than {MAX_TESTS} assertions")
    return [AssertionTest(prefix, code, entry_point.strip(), number, count) for number in range(count)]
