"""Carry out the requests of the environment service: create, step, evaluate, release; end idle instances."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

import orjson

from treadle.core.errors import ConfigError, EngineError
from treadle.core.gather import gather_or_cancel
from treadle.environments.service.errors import (
    EnvironmentFailed,
    NotActed,
    RequestUnfit,
    ServiceError,
    WorkerGone,
)
from treadle.environments.service.instances import Instance, InstanceTable, Reply
from treadle.environments.service.kinds import ServedKind
from treadle.environments.service.metrics import Metrics
from treadle.environments.service.settings import EnvironmentServiceSettings
from treadle.environments.service.wire import Envelope, checked_score, checked_state
from treadle.environments.settings import EnvironmentSettings

_log = logging.getLogger(__name__)


class EnvironmentService:
    """Live instances of some types of environments."""

    def __init__(self, settings: EnvironmentServiceSettings, environments: Mapping[str, EnvironmentSettings]) -> None:
        """Prepare. Raises ConfigError for an environment that cannot be served, or if there is none."""
        if not environments:
            raise ConfigError("no environment is named; see `treadle environment serve --help`")
        self.settings = settings
        self.num_processes = 0
        self.instances = InstanceTable()
        self.metrics = Metrics(lambda: len(self.instances), lambda: self.num_processes)
        self.is_draining = False
        self._kinds = {name: ServedKind(name, one, self._count) for name, one in environments.items()}
        for name, kind in self._kinds.items():
            self.metrics.add_kind(name, partial(getattr, kind, "needs_process"))
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Load the environments. Raises the errors of `ServedKind.open`."""
        await gather_or_cancel([kind.open() for kind in self._kinds.values()])

    async def close(self) -> None:
        """End all instances and processes."""
        kinds = list(self._kinds.values())
        for kind, error in zip(
            kinds, await asyncio.gather(*(kind.close() for kind in kinds), return_exceptions=True), strict=True
        ):
            if isinstance(error, BaseException):
                _log.error("%s could not be closed", kind.name, exc_info=error)

    async def drain(self) -> None:
        """Refuse new calls, wait a while for those in flight, then release all instances at once."""
        self.is_draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + self.settings.drain_s
        while loop.time() < until and any(not instance.is_idle for instance in self.instances):
            await asyncio.sleep(0.05)
        for instance in self.instances:
            self._end_soon(instance)
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def profile(self, envelope: Envelope) -> Reply:
        """Return the ids of the tasks of `params.split` for the seed `params.task_seed`. Raises ServiceError."""
        kind = self._kind(envelope)
        split, seed = envelope.params.get("split", "train"), envelope.params.get("task_seed", 0)
        if not isinstance(split, str) or not isinstance(seed, int):
            raise ServiceError(
                "bad_request", "params.split must be text, and params.task_seed a whole number", status=422
            )
        self._require_capacity(kind, of_instance=False)
        limit_s = self._limit(envelope)
        try:
            async with asyncio.timeout(limit_s):
                return _data(await kind.task_ids(split, seed, envelope.params))
        except TimeoutError:
            raise self._told(kind.name, _not_listed(limit_s)) from None
        except Exception as error:  # noqa: BLE001 - any error of the environment
            raise self._told(kind.name, self._explained(error, kind.name)) from None

    async def create(self, envelope: Envelope) -> Reply:
        """Create an instance and return its first state. Raises ServiceError; a failure leaves nothing behind."""
        task_id = _needed(envelope, "task_id")
        if (made := self._made_by(envelope)) is not None:
            return await made
        kind = self._kind(envelope)
        limit_s = self._limit(envelope)
        identity = envelope.instance_id or f"exp_{int(time.time())}_{uuid.uuid4().hex[:8]}"
        await self._make_room(identity, envelope)
        self._require_capacity(kind)
        began = asyncio.get_running_loop().time()
        try:
            task = await asyncio.wait_for(kind.task(task_id), limit_s)
        except TimeoutError:
            raise self._told(kind.name, _not_listed(limit_s)) from None
        except Exception as error:  # noqa: BLE001 - any error of the environment
            raise self._told(kind.name, self._explained(error, kind.name)) from None
        left_s = limit_s - (asyncio.get_running_loop().time() - began)
        # Other requests and SIGTERM may have come while the tasks were listed.
        if self.is_draining:
            raise ServiceError("shutting_down", "the service is stopping")
        if (again := self._made_by(envelope)) is not None:
            return await again
        if self.instances.get(identity) is not None:
            raise _in_use(identity)
        self._require_capacity(kind)
        instance = Instance(
            identity,
            kind.name,
            task_id,
            kind.instance(task, identity),
            request_id=envelope.request_id,
            kept_reply_bytes=self.settings.kept_reply_bytes,
        )
        self.instances.add(instance)
        return await instance.replies.once(
            envelope.request_id, _content(envelope), lambda: self._started(instance, envelope.params, max(left_s, 0.0))
        )

    async def call(self, op: str, envelope: Envelope) -> Reply:
        """Carry out `step`, `evaluate` or `get_info`. Raises ServiceError only if the call had no effect."""
        instance = self.instances.find(_needed(envelope, "instance_id"))
        if op == "step" and not envelope.messages:
            raise ServiceError("bad_request", "step needs messages, with the model's action")
        limit_s = self._limit(envelope)
        request_id = envelope.request_id if op == "step" else None
        return await instance.replies.once(
            request_id, _content(envelope), lambda: self._acted(instance, op, envelope, limit_s)
        )

    async def release(self, envelope: Envelope) -> Reply:
        """End an instance; for an unknown one, only the body of the reply differs."""
        instance = self.instances.get(_needed(envelope, "instance_id"))
        if instance is None:
            return Reply(200, orjson.dumps({"success": False, "data": None}))
        self.metrics.released.inc()
        await asyncio.shield(self._end_soon(instance))
        return _data(None)

    def listing(self) -> list[dict[str, Any]]:
        """Return facts about all live instances."""
        now = asyncio.get_running_loop().time()
        return [
            {
                "instance_id": instance.id,
                "env_type": instance.env_type,
                "task_id": instance.task_id,
                "state": instance.state,
                "age_s": round(now - instance.created_at, 3),
                "idle_s": round(now - instance.used_at, 3),
                "num_steps": instance.num_steps,
                "pid": instance.backend.pid,
            }
            for instance in self.instances
        ]

    async def reap(self) -> None:
        """End idle instances at regular intervals, until cancelled, in background tasks; errors are only logged."""
        while True:
            await asyncio.sleep(self.settings.sweep_interval_s)
            try:
                self.sweep()
            except Exception:  # noqa: BLE001 - any error of an environment
                _log.exception("looking for idle instances failed; the next look comes")

    def sweep(self) -> int:
        """Start ending the instances that have been idle for longer than `idle_timeout_s`; return their number."""
        since = asyncio.get_running_loop().time() - self.settings.idle_timeout_s
        idle = [instance for instance in self.instances if instance.is_idle and instance.used_at < since]
        for instance in idle:
            self.metrics.reaped.inc()
            self._end_soon(instance)
        return len(idle)

    def _end_soon(self, instance: Instance) -> asyncio.Task[None]:
        """Remove an instance from the table now, and end it in a background task."""
        self.instances.remove(instance)
        task = asyncio.create_task(self._ended(instance))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _ended(self, instance: Instance) -> None:
        try:
            await instance.end(self.settings.close_timeout_s)
        except Exception:  # noqa: BLE001 - any error of an environment
            _log.exception("instance %s could not be ended in order", instance.id)

    async def _started(self, instance: Instance, params: Mapping[str, Any], limit_s: float) -> Reply:
        try:
            reply = _data(checked_state(await instance.start(params, limit_s), is_first=True))
        except BaseException as error:
            self.instances.remove(instance)
            await self._ended(instance)
            if not isinstance(error, Exception):
                raise
            raise self._told(instance.env_type, self._explained(error, instance.env_type)) from None
        if instance.is_released:
            raise ServiceError("instance_not_found", f"instance {instance.id!r} was released while it began")
        self.metrics.created.labels(instance.env_type).inc()
        return reply

    async def _acted(self, instance: Instance, op: str, envelope: Envelope, limit_s: float) -> Reply:
        """Return the reply of a call; if the call failed after it began, the reply reports the error."""
        began = time.perf_counter()
        try:
            value = await instance.call(op, envelope.messages, envelope.params, limit_s)
            reply = _data(_checked(op, value))
        except NotActed:
            raise
        except Exception as error:  # noqa: BLE001 - any error of the environment
            failure = self._told(instance.env_type, self._explained(error, instance.env_type, instance))
            if isinstance(error, RequestUnfit):
                raise failure from None
            reply = Reply(failure.status, orjson.dumps(failure.as_json()))
        if op == "step":
            self.metrics.observe_step(time.perf_counter() - began)
        return reply

    def _explained(self, error: Exception, kind: str, instance: Instance | None = None) -> ServiceError:
        """Return the error to report to the caller; log an environment's error in full, with the reported number."""
        if isinstance(error, ServiceError):
            return error
        if isinstance(error, RequestUnfit):
            return ServiceError("bad_request", str(error))
        if isinstance(error, (WorkerGone, EngineError)):
            lost = ServiceError(
                "env_crashed", f"the process of {kind} ended before it answered", retryable=instance is None
            )
            if instance is not None:
                instance.failure = instance.failure or lost
                if instance.is_released:
                    return ServiceError("env_crashed", f"instance {instance.id!r} was released during the call")
            return lost
        if isinstance(error, OSError):
            return ServiceError("capacity", f"no process could be started: {error.strerror or type(error).__name__}")
        number = uuid.uuid4().hex[:12]
        name = error.kind if isinstance(error, EnvironmentFailed) else type(error).__name__
        if isinstance(error, EnvironmentFailed):
            _log.error("error %s of %s:\n%s", number, kind, error.trace)
        else:
            _log.error("error %s of %s", number, kind, exc_info=error)
        return ServiceError("env_error", f"{kind} raised {name}; the service's log has it under {number}")

    def _told(self, kind: str, failure: ServiceError) -> ServiceError:
        self.metrics.failed.labels(kind, failure.code).inc()
        return failure

    def _kind(self, envelope: Envelope) -> ServedKind:
        name = envelope.env_type or next(iter(self._kinds))
        if name not in self._kinds:
            raise ServiceError("unknown_env", f"{name!r} is not served here; known: {', '.join(self._kinds)}")
        return self._kinds[name]

    def _limit(self, envelope: Envelope) -> float:
        limit_s = envelope.params.get("timeout_s", self.settings.call_timeout_s)
        if isinstance(limit_s, bool) or not isinstance(limit_s, (int, float)) or not limit_s > 0:
            raise ServiceError("bad_request", "params.timeout_s must be a number above 0", status=422)
        return min(float(limit_s), self.settings.max_call_timeout_s)

    def _require_capacity(self, kind: ServedKind, *, of_instance: bool = True) -> None:
        if of_instance and len(self.instances) + len(self._ending) >= self.settings.max_instances:
            raise ServiceError("capacity", f"{self.settings.max_instances} instances are live; release some")
        if kind.needs_process and self.num_processes >= self.settings.max_processes:
            raise ServiceError("capacity", f"{self.settings.max_processes} processes run; release instances")

    def _made_by(self, envelope: Envelope) -> Awaitable[Reply] | None:
        """Return the reply of an earlier create with the same `request_id`, if its instance is live."""
        if envelope.request_id is None or (made := self.instances.created_by(envelope.request_id)) is None:
            return None
        return made.replies.once(envelope.request_id, _content(envelope), _never)

    async def _make_room(self, identity: str, envelope: Envelope) -> None:
        """End the instance with this id if the request replaces it. Raises ServiceError if it does not."""
        old = self.instances.get(identity)
        if old is None:
            return
        if envelope.params.get("replace") is not True:
            raise _in_use(identity)
        await asyncio.shield(self._end_soon(old))

    def _count(self, change: int) -> None:
        self.num_processes += change


def _not_listed(limit_s: float) -> ServiceError:
    return ServiceError("env_timeout", f"the tasks were not listed within {limit_s:g} s")


def _in_use(identity: str) -> ServiceError:
    return ServiceError("instance_exists", f"instance {identity!r} exists; release it, or send params.replace = true")


def _needed(envelope: Envelope, name: str) -> str:
    value: str | None = getattr(envelope, name)
    if not value:
        raise ServiceError("bad_request", f"{name} is missing")
    return value


def _content(envelope: Envelope) -> Any:
    """Return the content in which a repeated request must equal the first request with its id."""
    return [envelope.env_type, envelope.task_id, envelope.instance_id, envelope.messages, envelope.params]


def _checked(op: str, value: Any) -> Any:
    if op == "step":
        return checked_state(value, is_first=False)
    return checked_score(value) if op == "evaluate" else value


def _data(value: Any) -> Reply:
    return Reply(200, orjson.dumps({"success": True, "data": value}))


async def _never() -> Reply:
    raise AssertionError("the reply of a create that made an instance is stored")
