"""Run computer algebra on text that models wrote: `python -m treadle.core.answers.symbolic_worker`.

The input is untrusted. The kernel limits memory and CPU time, and its signals end the process even inside a long
operation of the big-number library. No text is evaluated as Python and no file can be written, see
`core/answers/confinement.py`. Requests and replies are frames of JSON on standard input and output. The process ends
when its standard input is closed, or in the middle of a request when it reaches the CPU limit, so it cannot outlive its
parent by more than that.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import orjson

from treadle.core.answers.confinement import confine
from treadle.core.untrusted.process_confinement import limit_memory
from treadle.core.untrusted.worker_frames import REPLY, next_request, open_frames, send_frame


def main(arguments: list[str]) -> int:
    """Serve requests; `arguments` are the CPU limit of a request in seconds and the address space in MiB."""
    limit_s, memory_mib = float(arguments[0]), int(arguments[1])
    frames = open_frames()
    limit_memory(memory_mib * 1024 * 1024)
    sys.set_int_max_str_digits(0)  # sympy prints numbers; the CPU limit holds here too
    try:
        confine()
    except ImportError as error:
        send_frame(frames, REPLY, orjson.dumps({"failed": str(error)}))
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

    send_frame(frames, REPLY, orjson.dumps({"ready": True}))
    while (content := next_request()) is not None:
        request = orjson.loads(content)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        reply = answer(request["prediction"], request["gold"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        send_frame(frames, REPLY, orjson.dumps(reply))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
