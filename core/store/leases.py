"""Take and watch leases of a root, in a local folder or an object store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import orjson

from treadle.core.errors import RunError
from treadle.core.store.locks import FileLease, FileLeaseWatch, Holder, hold, live_holder
from treadle.core.store.object_lease import ObjectLease, ObjectLeaseWatch, holder_on
from treadle.core.store.object_storage import ObjectStorage
from treadle.core.store.roots import Storage

Lease = FileLease | ObjectLease
LeaseWatch = FileLeaseWatch | ObjectLeaseWatch


@contextlib.contextmanager
def hold_key(
    storage: Storage,
    key: str,
    what: str,
    *,
    above: int = 0,
    seen: tuple[bytes, float] | None = None,
    brief: bool = False,
) -> Iterator[Lease]:
    """Hold the lease `key` of a root during a block; raise RunError if a living process has it.

    In an object store, its token is greater than `above`. `seen` is an earlier observation of the lease, from
    `ObjectLeaseWatch.seen`.
    """
    if not isinstance(storage, ObjectStorage):
        with hold(storage.directory(key), what, brief=brief) as local:
            yield local
        return
    lease = ObjectLease(storage, key, what, above=above, seen=seen, brief=brief)
    try:
        lease.keep_renewing()
        yield lease
    finally:
        lease.release()


def holder_of(storage: Storage, key: str) -> Holder | None:
    """Return the current holder of a lease of a root, or None."""
    if not isinstance(storage, ObjectStorage):
        return live_holder(storage.directory(key))
    return holder_on(storage, key)


def watch_leases(storage: Storage) -> LeaseWatch:
    """Return a watch of the leases of a root."""
    if not isinstance(storage, ObjectStorage):
        return FileLeaseWatch(storage)
    return ObjectLeaseWatch(storage)


def write_fenced(storage: Storage, key: str, data: bytes, token: int, lease: Lease | None) -> None:
    """Replace a JSON object that this or an earlier holder wrote; the token in it never decreases.

    `data` contains `token`. Raises RunError if a later holder wrote the object, or if the lease is lost.
    """
    while True:
        if lease is not None:
            lease.check()
        current = storage.get(key)
        later = _token_in(current)
        if later > token:
            raise RunError(
                f"{storage.location(key)} was written by a newer holder of its lease "
                f"(token {later}, ours is {token}); see `treadle status`"
            )
        if storage.put_if(key, data, current):
            return


def _token_in(content: bytes | None) -> int:
    """Return the token in a JSON object, or 0 if it has none."""
    try:
        token = orjson.loads(content or b"{}")["token"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0
    return token if isinstance(token, int) else 0
