"""Run computer algebra on text that models wrote: `python -m treadle.core.answers.symbolic_worker`.

The input is untrusted. The kernel limits memory and CPU time, and its signals end the process even inside a long
operation of the big-number library. No text is evaluated as Python and no file can be written, see
`core/answers/confinement.py`. Requests and replies are lines of JSON on standard input and output. The process ends
when its standard input is closed, or in the middle of a request when it reaches the CPU limit, so it cannot outlive its
parent by more than that.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from typing import Any, BinaryIO

import orjson

from treadle.core.answers.confinement import confine


def main(arguments: list[str]) -> int:
    """Serve requests; `arguments` are the CPU limit of a request in seconds and the address space in MiB."""
    limit_s, memory_mib = float(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes our input
    replies = _take_stdout()
    _limit_resources(memory_mib)
    sys.set_int_max_str_digits(0)  # sympy prints numbers; the CPU limit holds here too
    try:
        confine()
    except ImportError as error:
        _send(replies, {"failed": str(error)})
        return 1
    from treadle.core.answers.algebra import Undecided, Unparsable, compare  # only now: it imports sympy

    def answer(prediction: str, gold: str) -> dict[str, Any]:
        try:
            return {"equal": compare(prediction, gold)}
        except MemoryError:
            return {"equal": False, "cause": "memory"}
        except RecursionError:
            return {"equal": False, "cause": "depth"}
        except Unparsable:
            return {"equal": False, "cause": "unread"}
        except Undecided as error:
            return {"equal": False, "cause": f"error: {error}"}
        except Exception as error:  # noqa: BLE001 - an error of the algebra is reported, never taken for "unequal"
            return {"equal": False, "cause": f"error: {type(error).__name__}"}

    _send(replies, {"ready": True})
    for line in sys.stdin.buffer:
        request = orjson.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        reply = answer(request["prediction"], request["gold"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(replies, reply)
    return 0


def _take_stdout() -> BinaryIO:
    """Reserve standard output for replies: output printed by a library must not get between them."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return replies


def _limit_resources(memory_mib: int) -> None:
    space = memory_mib * 1024 * 1024
    for kind, value in ((resource.RLIMIT_AS, space), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        # Not every platform supports every limit; the CPU limit of a request holds in any case.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))


def _send(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(orjson.dumps(reply) + b"\n")
    replies.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
