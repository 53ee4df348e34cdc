"""Run calls of users' functions within time limits, and turn what they return or raise into outcomes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from treadle.agent.tools.outcome import ToolOutcome, clip
from treadle.core.chat_turns import well_formed
from treadle.core.errors import ToolError
from treadle.core.untrusted.concealment import concealed, without_payload
from treadle.core.untrusted.sanitize import one_line
from treadle.core.work_clock import work_clock

_ERROR_CHARS = 500
_FOLDERS = re.compile(r"(?:(?<![\w:/.])|(?<=file://))/(?:[^\s/'\"]+/)+")
"""Pattern of the folders of an absolute path; it does not match paths in web addresses."""

Function = Callable[..., Any]


class CallThreads:
    """Threads for functions that are not async, at most `limit` at once.

    No thread can be stopped. If a call runs out of time, its thread is given up and another thread may take its place,
    until `limit` threads are given up.
    """

    def __init__(self, name: str, limit: int) -> None:
        """Prepare for calls of the tool `name`; each call will start a thread of its own."""
        self._name = name
        self._limit = limit
        self._free = asyncio.Semaphore(limit)
        self._num_given_up = 0

    async def run(self, function: Function, *, when: Callable[[], float]) -> Any:
        """Return what a function returns; `when` is called once a thread is free and returns the time of the limit.

        Raises TimeoutError at that time of the work clock, _Failed if the function raises, and ToolError if too many
        threads are given up.
        """
        if self._num_given_up >= self._limit:
            error = ToolError(
                f"{self._name}: {self._limit} calls that ran out of time still hold their threads; give what it waits "
                "for a time limit"
            )
            error.retryable = True
            raise error
        # The wait for a thread is not the agent's time.
        with work_clock().hold():
            await self._free.acquire()
        try:
            return await self._run(function, when())
        finally:
            self._free.release()

    async def _run(self, function: Function, when: float) -> Any:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = contextvars.copy_context()
        is_given_up = False

        def end(value: Any, error: BaseException | None) -> None:
            self._num_given_up -= is_given_up
            if not ended.done():
                ended.set_result((value, error))

        def work() -> None:
            value, failure = None, None
            try:
                value = context.run(function)
            except BaseException as error:  # noqa: BLE001 - also SystemExit, which would end the thread in silence
                failure = error
            try:
                loop.call_soon_threadsafe(end, value, failure)
            except RuntimeError:  # the event loop has ended
                return

        # A daemon: a call that never returns must not keep the process.
        threading.Thread(target=work, name=f"tool {self._name}", daemon=True).start()
        try:
            async with work_clock().limit(when):
                value, error = await asyncio.shield(ended)
        except BaseException:
            if not ended.done():
                is_given_up = True
                self._num_given_up += 1
            raise
        if error is not None:
            raise _Failed(error) from error
        return value


class _Failed(Exception):
    """Error of a user's function."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


async def outcome_of(
    name: str,
    function: Function,
    threads: CallThreads,
    *,
    time_limit_s: float,
    deadline: float,
    budget_s: float | None,
    max_output_chars: int | None,
    payload: Mapping[str, Any],
) -> ToolOutcome:
    """Run one call, a function without arguments, and return its outcome.

    The call is stopped after `time_limit_s`, and after `budget_s` or, if that is None, at `deadline`, a time of the
    work clock. Texts of the payload are concealed in errors. Raises ToolError if the function does, or if its value is
    not JSON.
    """
    clock = work_clock()
    started = clock.time()

    def when() -> float:
        nonlocal started
        started = clock.time()
        return min(started + time_limit_s, deadline if budget_s is None else started + budget_s)

    try:
        value = await _value(function, threads, when)
    except _Failed as failed:
        return _failure(failed.error, payload, clock.time() - started)
    except TimeoutError:
        seconds = clock.time() - started
        return ToolOutcome("timeout", f"{name} did not return in {seconds:.3g} s and was stopped.", seconds)
    return _success(name, value, max_output_chars, clock.time() - started)


async def _value(function: Function, threads: CallThreads, when: Callable[[], float]) -> Any:
    """Return the value of a call. Raises TimeoutError at the limit, and _Failed."""
    if not is_async(function):
        value = await threads.run(function, when=when)
        if not inspect.isawaitable(value):
            return value
        return await _awaited(lambda: value, when())
    return await _awaited(function, when())


def is_async(function: Function) -> bool:
    """Return whether a function, a partial of one, or the one that a decorator wraps is written with `async def`."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function))


async def _awaited(function: Function, when: float) -> Any:
    async with work_clock().limit(when):
        try:
            return await function()
        except (Exception, SystemExit) as error:  # at the limit it is cancelled, which is neither
            raise _Failed(error) from error


def _failure(error: BaseException, payload: Mapping[str, Any], seconds: float) -> ToolOutcome:
    """Return the outcome of a call that raised: one line for the model; its note is the place in the user's file."""
    if isinstance(error, ToolError):
        hidden = concealed(error, payload) or error
        # A ToolError reports a failure of the infrastructure, which may pass.
        hidden.retryable = error.retryable or type(error) is ToolError  # type: ignore[attr-defined]
        raise hidden from None
    place = next(
        (
            f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}"
            for frame, line in reversed(list(traceback.walk_tb(error.__traceback__)))
            if not str(frame.f_globals.get("__name__")).startswith("treadle.")
        ),
        "",
    )
    return ToolOutcome("error", error_text(error, payload), seconds, note=place)


def error_text(error: BaseException, payload: Mapping[str, Any]) -> str:
    """Return type and message of an error in one line, without folders of this machine and texts of the payload."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - `__str__` of an error may fail as well
        said = ""
    said = _FOLDERS.sub(_without_folders, without_payload(said, payload))
    text = one_line(f"{type(error).__name__}: {said}" if said.strip() else type(error).__name__)
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."


def _without_folders(match: re.Match[str]) -> str:
    """Return the replacement of a match of `_FOLDERS`: empty if its first folder exists here, else the match."""
    first = match.group().split("/", 2)[1]
    try:
        return "" if os.path.lexists(f"/{first}") else match.group()
    except ValueError:  # a NUL
        return match.group()


def _success(name: str, value: Any, max_output_chars: int | None, seconds: float) -> ToolOutcome:
    if isinstance(value, (str, ToolOutcome)):
        text = value if isinstance(value, str) else value.text
    else:
        try:
            text = to_json(value, inf_nan_mode="strings").decode()
        except (PydanticSerializationError, UnicodeError) as error:
            said = one_line(str(error))
            raise ToolError(f"{name} returned a {type(value).__name__} that is not JSON: {said}") from None
    outcome = value if isinstance(value, ToolOutcome) else ToolOutcome("ok", text)
    return replace(outcome, text=clip(well_formed(text), max_output_chars), seconds=seconds)
