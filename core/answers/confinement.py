"""Keep computer algebra from evaluating text as Python, without taking away what it needs.

sympy evaluates text in three ways: `parse_expr`, which the LaTeX parser calls for number tokens; generated source for
the arithmetic of monomials; and the standard library's `dataclass` and `namedtuple` in modules that it imports late.
The first two are replaced by plain functions, and modules of the third kind are imported beforehand. Then an audit hook
refuses every evaluation of text, and every operation on anything outside the process.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

NUMBER = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})")
_RATIO = re.compile(r"([+-]?\d{1,400})/(\d{1,400})")

EARLY_MODULES = (
    "sympy.abc",
    "sympy.physics.units",
    "sympy.integrals.intpoly",
    "sympy.integrals.manualintegrate",
    "sympy.integrals.heurisch",
    "sympy.integrals.risch",
    "sympy.assumptions.handlers",
    "sympy.assumptions.satask",
    "sympy.sets.handlers.functions",
    "sympy.combinatorics",
)
"""Modules that sympy imports in the middle of a computation. They evaluate text, which is refused by then, or take so
long to load that a comparison would reach its limit."""

ABSENT_MODULES = (
    "numpy",
    "scipy",
    "pycosat",
    "pysat",
    "z3",
    "matchpy",
    "sage",
    "IPython",
    "pyglet",
    "lxml",
    "symengine",
)
"""Modules that sympy uses if they are installed. `confine` makes them fail to import, as no comparison needs them."""

_REFUSED_EVENTS = (
    "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "fcntl.", "mmap.", "resource.", "tempfile.",
    "urllib.", "http.", "ftplib.", "smtplib.", "pickle.", "code.__new__", "function.__new__", "glob.", "sqlite3.",
    "signal.pthread_kill", "webbrowser.", "winreg.", "cpython.run_",
)  # fmt: skip
_NEEDED_EVENTS = frozenset({"os.listdir", "os.scandir"})
"""Audit events that are allowed although `_REFUSED_EVENTS` covers them, because imports of modules raise them."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def confine() -> None:
    """Confine this process before it reads text that models wrote. Raise ImportError without the algebra's packages."""
    for name in ABSENT_MODULES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    for name in EARLY_MODULES:
        importlib.import_module(name)
    _replace_evaluator()
    _replace_monomials()
    from treadle.core.answers import algebra

    algebra.prepare()
    sys.addaudithook(refuse)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PermissionError if an audit event compiles code of no installed module, or acts outside the process."""
    if event == "compile":
        # Imports compile the source of a file; eval, exec, compile and lambdify name no existing file.
        filename = arguments[1]
        if isinstance(filename, str) and filename.startswith("/") and filename.endswith(".py"):
            return
        raise PermissionError("evaluating text as Python is refused")
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & _WRITING:
            raise PermissionError("writing a file is refused")
    elif event.startswith(_REFUSED_EVENTS) and event not in _NEEDED_EVENTS:
        raise PermissionError(f"{event} is refused")


def _replace_evaluator() -> None:
    """Replace sympy's `parse_expr`, which evaluates text as Python, by a parser of number literals."""
    import sympy
    import sympy.parsing.sympy_parser as parser

    def read_number(text: str, *_: Any, **__: Any) -> Any:
        plain = text.replace(" ", "")
        if ratio := _RATIO.fullmatch(plain):
            return sympy.Rational(int(ratio[1]), int(ratio[2]))
        if NUMBER.fullmatch(plain) is None:
            raise ValueError("not a number")
        return sympy.Float(plain) if "." in plain else sympy.Integer(plain)

    for module in (parser, sympy.parsing, sympy):
        module.parse_expr = read_number


def _replace_monomials() -> None:
    """Replace the functions that sympy generates as source for each number of unknowns."""
    from sympy.polys.monomials import MonomialOps

    Monomial = tuple[int, ...]

    def div(one: Monomial, other: Monomial) -> Monomial | None:
        found = tuple(a - b for a, b in zip(one, other, strict=True))
        return None if any(power < 0 for power in found) else found

    operations: dict[str, Callable[..., Monomial | None]] = {
        "mul": lambda one, other: tuple(a + b for a, b in zip(one, other, strict=True)),
        "pow": lambda one, k: tuple(a * k for a in one),
        "mulpow": lambda one, other, k: tuple(a + b * k for a, b in zip(one, other, strict=True)),
        "ldiv": lambda one, other: tuple(a - b for a, b in zip(one, other, strict=True)),
        "div": div,
        "lcm": lambda one, other: tuple(map(max, one, other)),
        "gcd": lambda one, other: tuple(map(min, one, other)),
    }
    for name, operation in operations.items():
        setattr(MonomialOps, name, lambda self, operation=operation: operation)
