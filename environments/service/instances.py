"""Keep the service's instances: each runs one call at a time, stores its replies, and ends within a time limit."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from treadle.environments.service.backends import Backend
from treadle.environments.service.errors import NotActed, ServiceError, WorkerGone

InstanceState = Literal["creating", "ready", "busy", "broken"]


@dataclass(slots=True)
class Reply:
    """Response to one request."""

    status: int
    body: bytes


@dataclass(slots=True)
class _Stored:
    """Data kept about a request with an id: the digest of its content, and the reply unless it was dropped."""

    digest: bytes
    reply: asyncio.Future[Reply] | Reply | None


class StoredReplies:
    """Replies of one instance by the ids of their requests.

    An id is never forgotten while the instance lives, so that no request is carried out twice. The newest replies are
    kept, up to `max_bytes` bytes; a repeated request whose reply was dropped is refused.
    """

    __slots__ = ("_by_id", "_max_bytes", "_num_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._by_id: dict[str, _Stored] = {}
        self._max_bytes = max_bytes
        self._num_bytes = 0

    async def once(self, request_id: str | None, content: Any, act: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the reply of `act`, or the stored one of an earlier request with this id.

        If the earlier request is still being carried out, a repeated one waits for its reply. Raises ServiceError for
        an id that was used with other content or whose reply was dropped. Raises the errors of `act`: the id then
        counts as unused.
        """
        if request_id is None:
            return await act()
        digest = hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()
        known = self._by_id.get(request_id)
        if known is not None:
            return await _repeated(request_id, known, digest)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        stored = self._by_id[request_id] = _Stored(digest, future)
        try:
            reply = await act()
        except BaseException as error:
            del self._by_id[request_id]
            future.set_exception(error if isinstance(error, ServiceError) else ServiceError("internal", "it failed"))
            future.exception()  # retrieved, so that asyncio does not log it as never retrieved
            raise
        future.set_result(reply)
        stored.reply = reply
        self._num_bytes += len(reply.body)
        self._drop(stored)
        return reply

    def _drop(self, newest: _Stored) -> None:
        if self._num_bytes <= self._max_bytes:
            return
        for stored in self._by_id.values():
            if isinstance(stored.reply, Reply) and stored is not newest:
                self._num_bytes -= len(stored.reply.body)
                stored.reply = None
                if self._num_bytes <= self._max_bytes:
                    return


async def _repeated(request_id: str, known: _Stored, digest: bytes) -> Reply:
    if known.digest != digest:
        raise ServiceError("request_conflict", f"request_id {request_id!r} was used for another request")
    if known.reply is None:
        raise ServiceError("reply_dropped", f"request {request_id!r} was acted, and its reply is no longer kept")
    return known.reply if isinstance(known.reply, Reply) else await asyncio.shield(known.reply)


class Instance:
    """One instance. Its calls run one at a time in the order in which they came.

    Attributes:
        task_id: Id of its task.
        backend: Its episode, in the service's process or in one of its own.
        created_by: Id of the request that created it, if the request had one.
        created_at: When it was created, on the clock of the event loop.
        used_at: When its last call began or ended, on the clock of the event loop.
        failure: Why it is broken; None otherwise.
    """

    __slots__ = (
        "backend", "created_at", "created_by", "env_type", "failure", "id", "is_released", "num_steps", "replies",
        "task_id", "used_at", "_current", "_is_creating", "_turns",
    )  # fmt: skip

    def __init__(
        self,
        identity: str,
        env_type: str,
        task_id: str,
        backend: Backend,
        *,
        request_id: str | None,
        kept_reply_bytes: int,
    ) -> None:
        self.id = identity
        self.env_type = env_type
        self.task_id = task_id
        self.backend = backend
        self.created_by = request_id
        self.created_at = self.used_at = asyncio.get_running_loop().time()
        self.failure: ServiceError | None = None
        self.is_released = False
        self.num_steps = 0
        self.replies = StoredReplies(kept_reply_bytes)
        self._is_creating = True
        self._current: asyncio.Future[Any] | None = None
        self._turns = asyncio.Lock()

    @property
    def state(self) -> InstanceState:
        """Whether it is being created, ready, busy with a call, or broken."""
        if self.failure is not None:
            return "broken"
        if self._is_creating:
            return "creating"
        return "busy" if self._turns.locked() else "ready"

    @property
    def is_idle(self) -> bool:
        """Whether no call runs or waits."""
        return not self._turns.locked()

    def touch(self) -> None:
        """Note that it is used now."""
        self.used_at = asyncio.get_running_loop().time()

    async def start(self, params: Mapping[str, Any], limit_s: float) -> Any:
        """Begin the episode; return its first state. Raises ServiceError, and the backend's errors.

        After an error the caller must end the instance.
        """
        async with self._turns:
            try:
                return await self._limited(self.backend.start(params), limit_s)
            finally:
                self._is_creating = False
                self.touch()

    async def call(self, op: str, messages: Mapping[str, Any], params: Mapping[str, Any], limit_s: float) -> Any:
        """Carry out a call after all calls that came before it; return the environment's reply.

        A call that takes longer than `limit_s` breaks the instance. Raises ServiceError, and the backend's errors.
        """
        try:
            async with asyncio.timeout(limit_s):
                await self._turns.acquire()
        except TimeoutError:
            busy = f"instance {self.id!r} was busy with earlier calls for {limit_s:g} s"
            raise NotActed("capacity", busy) from None
        try:
            self.require_usable()
            self.touch()
            self.num_steps += op == "step"
            return await self._limited(self.backend.call(op, messages, params), limit_s)
        finally:
            self._turns.release()
            self.touch()

    def require_usable(self) -> None:
        """Raise NotActed for an instance that is broken or released."""
        if self.is_released:
            raise NotActed("instance_not_found", f"instance {self.id!r} was released")
        if self.failure is not None:
            broken = f"instance {self.id!r} is broken, release it: {self.failure.message}"
            raise NotActed(self.failure.code, broken)

    async def end(self, close_timeout_s: float) -> None:
        """Close the instance, for `close_timeout_s` at most, then kill it; raise the error of closing, if any."""
        self.is_released = True
        closing = asyncio.create_task(self._close())
        await asyncio.wait([closing], timeout=close_timeout_s)
        for task in (closing, self._current):
            if task is not None and not task.done():
                task.cancel()
        await self.backend.kill()
        if closing.done() and not closing.cancelled() and (error := closing.exception()) is not None:
            raise error

    async def _close(self) -> None:
        async with self._turns:
            await self.backend.close()

    async def _limited(self, work: Awaitable[Any], limit_s: float) -> Any:
        """Await a call of the backend; after `limit_s` mark the instance as broken, kill it, and raise ServiceError.

        The end of the cancelled call is not awaited: code that ignores its cancellation would delay the caller.
        """
        task = self._current = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task], timeout=limit_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            raise WorkerGone  # the instance was ended during the call
        if task.done():
            return task.result()
        task.cancel()
        self.failure = ServiceError("env_timeout", f"the environment did not answer within {limit_s:g} s")
        await self.backend.kill()
        raise self.failure


class InstanceTable:
    """Live instances by id, and by the id of the request that made them."""

    def __init__(self) -> None:
        self._by_id: dict[str, Instance] = {}
        self._by_request: dict[str, Instance] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Instance]:
        return iter(list(self._by_id.values()))

    def add(self, instance: Instance) -> None:
        """Add an instance under an id that is free."""
        self._by_id[instance.id] = instance
        if instance.created_by is not None:
            self._by_request[instance.created_by] = instance

    def find(self, identity: str) -> Instance:
        """Return an instance by its id. Raises ServiceError for an unknown id."""
        found = self._by_id.get(identity)
        if found is None:
            raise ServiceError("instance_not_found", f"there is no instance {identity!r}")
        return found

    def get(self, identity: str) -> Instance | None:
        """Return an instance, or None."""
        return self._by_id.get(identity)

    def created_by(self, request_id: str) -> Instance | None:
        """Return the instance that a request made, or None."""
        return self._by_request.get(request_id)

    def remove(self, instance: Instance) -> bool:
        """Forget an instance; return whether it was there."""
        if self._by_id.get(instance.id) is not instance:
            return False
        del self._by_id[instance.id]
        if instance.created_by is not None:
            self._by_request.pop(instance.created_by, None)
        return True
