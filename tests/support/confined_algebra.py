"""Print, as one JSON object, what a process confined for computer algebra refuses and what it can still do.

Run as a program, because a process cannot leave its confinement: `python tests/support/confined_algebra.py FOLDER`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import pickle
import pkgutil
import random
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sympy.polys.monomials import MonomialOps

from treadle.core.answers import confinement

OPERATIONS = ("mul", "pow", "mulpow", "ldiv", "div", "lcm", "gcd")
UNREACHED = {
    *("tests", "benchmarks", "plotting", "testing", "interactive", "codegen", "physics", "parsing", "printing"),
    *("stats", "crypto", "diffgeom", "categories", "vector", "unify", "holonomic", "liealgebras", "external"),
    *("multipledispatch", "sandbox", "deprecated", "galgebra", "utilities", "conftest", "this"),
}
"""Parts of sympy that no computation with expressions imports."""


class _Payload:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (f"touch {self.path}",)


def attempts(folder: Path) -> dict[str, Callable[[], object]]:
    """Ways to run text, to write and to reach out. Each would leave a file in the folder or return quietly."""
    import sympy
    from sympy.parsing.sympy_parser import parse_expr

    path = folder / "made"
    text = f"__import__('pathlib').Path('{path}').touch()"
    existing = folder / "existing"
    pickled = pickle.dumps(_Payload(str(path)))
    return {
        "eval": lambda: eval(text),
        "exec": lambda: exec(text),
        "compile": lambda: compile(text, "<string>", "exec"),
        "compile under a name like lambdify's": lambda: exec(compile(text, "<lambdifygenerated-1>", "exec")),
        "compile under no path": lambda: exec(compile(text, "sympy.py", "exec")),
        "sympify": lambda: sympy.sympify(text),
        "S": lambda: sympy.S(text),
        "parse_expr": lambda: parse_expr(text),
        "subs": lambda: sympy.Symbol("x").subs("x", text),
        "a sum with text": lambda: sympy.Symbol("x") + text,
        "Poly": lambda: sympy.Poly(text),
        "solve": lambda: sympy.solve(text),
        "Matrix": lambda: sympy.Matrix([[text]]),
        "lambdify": lambda: sympy.lambdify(sympy.Symbol("x"), sympy.Symbol("x")),
        "namedtuple": lambda: namedtuple("Made", "x"),
        "dataclass": lambda: dataclasses.make_dataclass("Made", ["x"]),
        "open to write": lambda: path.open("w"),
        "open to append": lambda: existing.open("a"),
        "touch": path.touch,
        "unlink": existing.unlink,
        "rename": lambda: existing.rename(path),
        "mkdir": path.mkdir,
        "symlink": lambda: path.symlink_to(existing),
        "chmod": lambda: existing.chmod(0o777),
        "system": lambda: os.system(f"touch {path}"),
        "Popen": lambda: subprocess.Popen(["touch", str(path)]),
        "fork": os.fork,
        "execv": lambda: os.execv("/bin/touch", ["touch", str(path)]),
        "posix_spawn": lambda: os.posix_spawn("/bin/touch", ["touch", str(path)], {}),
        "kill": lambda: os.kill(os.getppid(), 0),
        "connect": lambda: socket.socket().connect(("127.0.0.1", 9)),
        "a foreign library": lambda: ctypes.CDLL("libc.so.6").system(b"true"),
        "pickle": lambda: pickle.loads(pickled),
    }  # fmt: skip


def refusals(folder: Path) -> dict[str, str]:
    """Attempt -> the kind of the error that stopped it, or `done`."""
    (folder / "existing").write_text("kept")
    ways = attempts(folder)
    confinement.confine()
    found = {}
    for name, attempt in ways.items():
        try:
            attempt()
        except Exception as error:  # noqa: BLE001 - its kind is the result
            found[name] = type(error).__name__
        else:
            found[name] = "done"
    return found


def operations(seed: int) -> list[object]:
    """Results of sympy's functions for monomials on random ones."""
    chance = random.Random(seed)
    found: list[object] = []
    for unknowns in range(1, 6):
        ops = MonomialOps(unknowns)
        for _ in range(20):
            one, other = (tuple(chance.randrange(4) for _ in range(unknowns)) for _ in "ab")
            power = chance.randrange(4)
            arguments = {"pow": (one, power), "mulpow": (one, other, power)}
            found += [getattr(ops, name)()(*arguments.get(name, (one, other))) for name in OPERATIONS]
    return found


def late_imports() -> list[str]:
    """Modules of sympy that computations may import and that cannot be imported any more."""
    import sympy

    refused = []
    for module in pkgutil.walk_packages(sympy.__path__, "sympy.", onerror=lambda name: None):
        if UNREACHED.isdisjoint(module.name.split(".")):
            try:
                importlib.import_module(module.name)
            except PermissionError:
                refused.append(module.name)
    return refused


def computations() -> dict[str, bool]:
    """Return computations for which sympy needs polynomials, integrals, sums and simplification."""
    import sympy
    from sympy.abc import k, n, x, y

    difference = sympy.sin(2 * x) - 2 * sympy.sin(x) * sympy.cos(x)
    return {
        "simplify": sympy.simplify(difference) == 0,
        "factor": sympy.factor(x**2 - y**2) == (x - y) * (x + y),
        # Enough to exclude the operations above: sympy caches the ones that it generated.
        "seven unknowns": len(sympy.ring("a:g", sympy.ZZ)[0].gens) == 7,
        "groebner": len(sympy.groebner([x**2 - y, y**2 - x], x, y).exprs) == 2,
        "integrate": sympy.integrate(x * sympy.exp(x), x) == (x - 1) * sympy.exp(x),
        "sum": sympy.simplify(sympy.summation(k, (k, 1, n)) - n * (n + 1) / 2) == 0,
        "limit": sympy.limit(sympy.sin(x) / x, x, 0) == 1,
        "hyperexpand": sympy.hyperexpand(sympy.hyper([1, 1], [2], x)) == -sympy.log(1 - x) / x,
        "solve": sympy.solve(x**3 - 1, x)[0] == 1,
        "ask": sympy.ask(sympy.Q.even(2 * k), sympy.Q.integer(k)) is True,
        "matrix": sympy.Matrix([[1, 2], [3, 4]]).inv()[0, 0] == -2,
    }


if __name__ == "__main__":
    generated = operations(7)
    json.dump(
        {
            "refusals": refusals(Path(sys.argv[1])),
            "same operations": operations(7) == generated,
            "late imports": late_imports(),
            "computations": computations(),
        },
        sys.stdout,
    )
