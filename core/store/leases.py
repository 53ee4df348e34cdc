"""Take and watch leases of a root, in a local folder or an object store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from treadle.core.store.locks import FileLeaseWatch, Holder, Lease, LeaseWatch, hold, live_holder
from treadle.core.store.object_storage import ObjectStorage
from treadle.core.store.roots import Storage


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
    `LeaseWatch.seen`.
    """
    if not isinstance(storage, ObjectStorage):
        with hold(storage.directory(key), what, brief=brief) as local:
            yield local
        return
    from treadle.core.store.object_lease import ObjectLease

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
    from treadle.core.store.object_lease import holder_on

    return holder_on(storage, key)


def watch_leases(storage: Storage) -> LeaseWatch:
    """Return a watch of the leases of a root."""
    if not isinstance(storage, ObjectStorage):
        return FileLeaseWatch(storage)
    from treadle.core.store.object_lease import ObjectLeaseWatch

    return ObjectLeaseWatch(storage)
