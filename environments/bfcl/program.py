"""Serve the multi-turn tasks of `bfcl-eval` on a Unix socket, in a process of its own per connection.

Run by `worker.py` with the Python that `treadle env install bfcl` sets up. The package keeps the objects of all tasks
in the globals of one module and evaluates calls with `eval`. So each connection gets a fork of a process that has only
loaded the package, and from the model's output only names of the task's functions and JSON values are evaluated.

Requests and replies are lines of JSON. A request with which a process used up its processor time is answered with
`{"ended": "time"}` by the process that forked it.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import keyword
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.engines.supervisor import die_with_parent, wake_on_children

CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
_MEMORY_BYTES = 2 << 30
_MODEL = "treadle"
"""Name of the model, from which the package derives the names of its global objects."""
_UNSAFE = "not_a_function_of_this_task()"
"""Call that is evaluated in place of one that `_is_safe` refuses; it fails and changes nothing."""

Entry = dict[str, Any]
Turns = Sequence[Sequence[Sequence[str]]]
"""Calls of a conversation as text in the package's form: a list per user turn, in it a list per turn of the model."""


@dataclass(frozen=True)
class Package:
    """Tasks and gold calls of `bfcl-eval`, loaded once."""

    entries: Mapping[str, Entry]
    """Id of a task -> task, in the order of the package."""
    answers: Mapping[str, list[list[str]]]
    """Id of a task -> gold calls of each turn of the user."""

    @classmethod
    def load(cls) -> Package:
        """Import the package and read the tasks of all categories."""
        # Imported before any fork, so that all forks share the modules.
        import bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker
        import bfcl_eval.model_handler.utils  # noqa: F401
        from bfcl_eval.utils import load_dataset_entry, load_ground_truth_entry

        entries = [entry for category in CATEGORIES for entry in load_dataset_entry(category)]
        answers = [answer for category in CATEGORIES for answer in load_ground_truth_entry(category)]
        return cls(
            {entry["id"]: entry for entry in entries}, {answer["id"]: answer["ground_truth"] for answer in answers}
        )


class Session:
    """Handler of the requests of one connection; it holds the objects of at most one task."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._entry: Entry = {}
        self._functions: frozenset[str] = frozenset()

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request by its `op`."""
        match request["op"]:
            case "tasks":
                return {"tasks": [[name, _first_message(entry)] for name, entry in self._package.entries.items()]}
            case "begin":
                return self._begin(request["task"])
            case "execute":
                return self._execute(request["calls"])
            case "check":
                return self._check(request["task"], request["turns"])
        return {"error": f"there is no operation {request['op']!r}"}

    def _begin(self, task: str) -> dict[str, Any]:
        from bfcl_eval.constants.default_prompts import (
            DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC,
            MAXIMUM_STEP_LIMIT,
        )

        if task not in self._package.entries:
            return {"error": f"there is no task {task!r}"}
        self._entry = entry = self._package.entries[task]
        _, objects = self._run([])
        methods = [name for one in objects.values() for name, _ in inspect.getmembers(one, inspect.ismethod)]
        self._functions = frozenset(name for name in methods if not name.startswith("_"))
        added = {int(turn): _tools(functions) for turn, functions in entry.get("missed_function", {}).items()}
        messages = [
            DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC if turn in added else _text(said)
            for turn, said in enumerate(entry["question"])
        ]
        return {
            "messages": messages,
            "tools": _tools(entry["function"]),
            "added": added,
            "max_steps": MAXIMUM_STEP_LIMIT,
        }

    def _execute(self, calls: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """Run the calls of one turn of the model; `decoded` is None if the package cannot read them."""
        from bfcl_eval.model_handler.utils import convert_to_function_call

        safe = [self._is_safe(name, arguments) for name, arguments in calls]
        try:
            decoded = [
                convert_to_function_call([{name: json.dumps(arguments)}])[0] if is_safe else _UNSAFE
                for (name, arguments), is_safe in zip(calls, safe, strict=True)
            ]
        except Exception as error:  # noqa: BLE001 - the package skips a turn on any error
            return {"decoded": None, "error_text": f"{type(error).__name__}: {error}"}
        results, _ = self._run(decoded)
        for number, (name, _) in enumerate(calls):
            if not safe[number]:
                results[number] = f"Error during execution: name {name!r} is not defined"
        return {"decoded": decoded, "results": results}

    def _is_safe(self, name: str, arguments: Any) -> bool:
        """Return whether a call may be evaluated: a function of the task, with identifiers as names of arguments."""
        names = arguments if isinstance(arguments, dict) else ()
        return name in self._functions and all(one.isidentifier() and not keyword.iskeyword(one) for one in names)

    def _run(self, calls: list[str]) -> tuple[list[str], dict[str, Any]]:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        entry = self._entry
        found: tuple[list[str], dict[str, Any]] = execute_multi_turn_func_call(
            calls,
            entry.get("initial_config", {}),
            entry["involved_classes"],
            _MODEL,
            entry["id"],
            long_context="long_context" in entry["id"],
            is_evaL_run=False,
        )
        return found

    def _check(self, task: str, turns: list[list[list[str]]]) -> dict[str, Any]:
        """Return the verdict of the package on a whole conversation, in the same way as the package's runner."""
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

        gold = self._package.answers[task]
        if len(turns) != len(gold):
            return {"valid": False, "error_type": "multi_turn:force_terminated"}
        category = task.rpartition("_")[0]
        verdict = multi_turn_checker(turns, gold, self._package.entries[task], category, _MODEL)
        return {"valid": verdict["valid"], "error_type": verdict.get("error_type", "")}


def _first_message(entry: Entry) -> str:
    return _text(entry["question"][0])


def _text(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n\n".join(message["content"] for message in messages)


def _tools(functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return functions as the package describes them to chat services."""
    from bfcl_eval.constants.enums import ModelStyle
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
    from bfcl_eval.model_handler.utils import convert_to_tool

    made = convert_to_tool(functions, GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS)
    return [{key: tool["function"][key] for key in ("name", "description", "parameters")} for tool in made]


def _answer(connection: socket.socket, package: Package, cpu_s: int) -> None:
    """Answer the requests of a connection until its client closes it, each within `cpu_s` of processor time."""
    session = Session(package)
    with connection.makefile("rwb") as stream:
        for line in stream:
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit_s = int(used.ru_utime + used.ru_stime) + cpu_s
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
            try:
                reply = session.reply(json.loads(line))
            except Exception as error:  # noqa: BLE001 - the client raises it
                reply = {"error": f"{type(error).__name__}: {error}"}
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()


def _serve_child(connection: socket.socket, package: Package, cpu_s: int, parent: int) -> None:
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _answer(connection, package, cpu_s)


def serve(listener: socket.socket, package: Package, cpu_s: int) -> None:
    """Fork a process for each connection, for ever."""
    wake, parent = wake_on_children(), os.getpid()
    open_connections: dict[int, socket.socket] = {}
    # Garbage collections in forks would copy the memory pages that hold the tasks.
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([listener.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(open_connections)
        if listener.fileno() not in ready:
            continue
        connection, _ = listener.accept()
        pid = os.fork()
        if pid == 0:
            listener.close()
            for other in open_connections.values():
                other.close()
            try:
                _serve_child(connection, package, cpu_s, parent)
            finally:
                os._exit(0)
        open_connections[pid] = connection


def _reap(open_connections: dict[int, socket.socket]) -> None:
    """Close the connections of processes that ended; tell the client if its request took too long."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection = open_connections.pop(pid)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            with contextlib.suppress(OSError):
                connection.sendall(b'{"ended": "time"}\n')
        connection.close()


def main() -> None:
    """Load the package, then listen on the path in the first argument; the second one is `cpu_s` of `serve`."""
    package = Package.load()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])
    listener.listen(4096)
    serve(listener, package, int(sys.argv[2]))


if __name__ == "__main__":
    main()
