"""The process that runs computer algebra on what models wrote: `python -m treadle.core.answers.symbolic_worker`.

It expects the worst of its input. Memory and CPU time are limited by the kernel, whose signals end the process even
inside a long operation of the big-number library. The one place where the algebra evaluates text as Python is
replaced, and an audit hook refuses any other. No file can be written. A line of JSON in, a line of JSON out; it ends
with its standard input, and in the middle of a request with its CPU limit at the latest, so it cannot outlive its
parent by more than that.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
from typing import Any, BinaryIO

import orjson

_NUMBER = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})")


def main(arguments: list[str]) -> int:
    """Serve requests; arguments are the CPU limit of a request in seconds and the address space in MiB."""
    limit_s, memory_mib = float(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes our input
    replies = _take_stdout()
    _limit_resources(memory_mib)
    try:
        _replace_evaluator()
        compare("x+1", "1+x")  # loads the parser and fills its caches
    except ImportError as error:
        _send(replies, {"failed": str(error)})
        return 1
    sys.addaudithook(_refuse_evaluation)
    _send(replies, {"ready": True})
    for line in sys.stdin.buffer:
        request = orjson.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        reply = _answer(request["prediction"], request["gold"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(replies, reply)
    return 0


def _take_stdout() -> BinaryIO:
    """Keep standard output for replies: what a library prints must not get between them."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return replies


def _limit_resources(memory_mib: int) -> None:
    space = memory_mib * 1024 * 1024
    for kind, value in ((resource.RLIMIT_AS, space), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        # Not every platform takes every limit; the CPU limit of a request holds in any case.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))


def _replace_evaluator() -> None:
    """Put a reader of numbers in the place of sympy's `parse_expr`, which evaluates text as Python.

    The LaTeX parser comes by it for the number tokens of its grammar only.
    """
    import sympy
    import sympy.parsing.sympy_parser as parser

    def read_number(text: str, *_: Any, **__: Any) -> Any:
        plain = text.replace(" ", "")
        if _NUMBER.fullmatch(plain) is None:
            raise ValueError(f"not a number: {text[:40]!r}")
        return sympy.Float(plain) if "." in plain else sympy.Integer(plain)

    parser.parse_expr = read_number


def _refuse_evaluation(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: code may come from installed modules, never from a string."""
    if event == "compile" and arguments[1] in (None, "<string>"):
        raise PermissionError("evaluating text as Python is refused")
    if event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"):
        raise PermissionError(f"{event} is refused")


def _answer(prediction: str, gold: str) -> dict[str, Any]:
    try:
        return {"equal": compare(prediction, gold)}
    except MemoryError:
        return {"equal": False, "limit": "memory"}
    except RecursionError:
        return {"equal": False, "limit": "depth"}
    except Exception:  # noqa: BLE001 - whatever the algebra cannot parse or compare is not equal
        return {"equal": False}


def compare(prediction: str, gold: str) -> bool:
    """Whether two LaTeX expressions are equal; raises what the parser or the algebra raises."""
    from math_verify import LatexExtractionConfig, parse, verify

    # The extraction of plain expressions is left out on purpose: it ends in sympy's parse_expr, which evaluates text.
    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    sides = [
        parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
        for text in (gold, prediction)
    ]
    if not (sides[0] and sides[1]):
        return False
    return bool(verify(sides[0], sides[1], timeout_seconds=None, raise_on_error=True))


def _send(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(orjson.dumps(reply) + b"\n")
    replies.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
