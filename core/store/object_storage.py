"""Implement a root in an object store with the S3 protocol.

`docs/decisions/0004-object-store-client.md` explains why obstore is the client. Growing files are kept in a working
folder on this machine, which outlives the process: the files of a killed process are used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError, StorageError
from treadle.core.store.storage import LocalStorage, checked_key, storage_errors

if TYPE_CHECKING:
    from obstore.store import S3Store

_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4
_READ_AHEAD_BYTES = 4 * 1024 * 1024
_MACHINE_FILE = "machine-id"
_BOOT_FILE = "/proc/sys/kernel/random/boot_id"
_MAX_CONFLICTS = 10
_MISSING_BUCKET = "<Code>NoSuchBucket</Code>"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeouts and retries of requests to an endpoint."""

    connect_s: float = 5.0
    request_s: float = 60.0
    """Timeout of one request, which transfers at most 8 MiB (64 MiB for a journal segment)."""
    retries: int = 4
    """Number of retries after transient failures: no connection, 5xx, 429."""
    retrying_s: float = 30.0
    """Time after which no retry begins."""


RETRY_POLICY = RetryPolicy()


class ObjectStorage:
    """A root below `s3://bucket/prefix`, with a working folder on this machine; with the methods of `LocalStorage`."""

    def __init__(
        self, bucket: str, prefix: str = "", *, retry_policy: RetryPolicy | None = None, work: Path | None = None
    ) -> None:
        """Connect to a bucket; `work` is the working folder.

        The default working folder is named after the root, below `$TREADLE_WORK` or the cache. Raises ConfigError if
        the client is not installed or an AWS variable is invalid.
        """
        self._checked_names(bucket, prefix)
        self._bucket, self._prefix = bucket, prefix
        self._store = _connect(bucket, prefix, retry_policy or RETRY_POLICY)
        self._machine: str | None = None
        self._local = LocalStorage(work or _work_folder(f"{_endpoint() or ''} {self.location()}"))

    def _checked_names(self, bucket: str, prefix: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", bucket):
            raise ConfigError(f"{bucket[:100]!r} cannot be the name of a bucket")
        if not re.fullmatch(r"[A-Za-z0-9!_.()/=@+ -]*", prefix) or {"", ".", ".."} & set((prefix or "x").split("/")):
            raise ConfigError(
                f"{prefix[:100]!r} cannot be the prefix of a root; use letters, digits, and -_.=@+ between slashes"
            )

    @property
    def work(self) -> Path:
        """Working folder on this machine."""
        return self._local.root

    def machine(self) -> str:
        """Return an identifier of this boot of this machine and the working folder; local locks are valid within it."""
        if self._machine is None:
            self._local.put_if(_MACHINE_FILE, uuid.uuid4().hex.encode(), None)
            own = self._local.get(_MACHINE_FILE) or b""
            with storage_errors("read", _BOOT_FILE):
                boot = Path(_BOOT_FILE).read_bytes()
            parts = (own, boot, os.fsencode(self.work.resolve()))
            self._machine = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
        return self._machine

    def with_retry_policy(self, retry_policy: RetryPolicy) -> ObjectStorage:
        """Return the same root with another retry policy."""
        return ObjectStorage(self._bucket, self._prefix, retry_policy=retry_policy, work=self.work)

    def location(self, key: str = "") -> str:
        """See `LocalStorage.location`."""
        return "/".join(part for part in (f"s3://{self._bucket}", self._prefix, key) if part)

    def put(self, key: str, data: bytes) -> None:
        """See `LocalStorage.put`."""
        with self._errors("write", key):
            _obstore().put(self._store, self._name(key), data, use_multipart=False)

    def put_if(self, key: str, data: bytes, expected: bytes | None) -> bool:
        """See `LocalStorage.put_if`: uses `If-None-Match: *`, or `If-Match` with the ETag of the content compared.

        If the answer to a put was lost, reading again shows whether it took effect. As long as every put writes new
        content, True means that this put took effect.
        """
        import obstore.exceptions as refused

        refusals = 0
        while True:
            with self._errors("write", key):
                found, version = self._get(key)
                if found != expected:
                    return refusals > 0 and found == data
                mode: Any = "create" if version is None else {"e_tag": version}
                try:
                    _obstore().put(self._store, self._name(key), data, mode=mode, use_multipart=False)
                    return True
                except (refused.AlreadyExistsError, refused.PreconditionError):
                    # S3 also refuses (409) while another put is in progress, which may still fail.
                    refusals += 1
                    if refusals == _MAX_CONFLICTS:
                        raise

    def get(self, key: str) -> bytes | None:
        """See `LocalStorage.get`."""
        with self._errors("read", key):
            return self._get(key)[0]

    def _get(self, key: str) -> tuple[bytes | None, str | None]:
        """Return content and ETag, both None if there is no object."""
        try:
            found = _obstore().get(self._store, self._name(key))
        except FileNotFoundError as error:
            if _MISSING_BUCKET in str(error):
                raise
            return None, None
        return bytes(found.bytes()), found.meta["e_tag"]

    def open(self, key: str) -> io.BufferedIOBase:
        """See `LocalStorage.open`: uses ranged reads, all of one version of the object."""
        with self._errors("read", key):
            meta = _obstore().head(self._store, self._name(key))
        return io.BufferedReader(_Reader(self, key, meta["size"], meta["e_tag"]), _READ_AHEAD_BYTES)

    def read_range(self, key: str, start: int, end: int, version: str | None) -> bytes:
        """Return bytes `start` to `end` (exclusive) of one version (ETag); raise StorageError if it has changed."""
        with self._errors("read", key):
            options: Any = {"range": (start, end)}
            if version is not None:
                options["if_match"] = version
            return bytes(_obstore().get(self._store, self._name(key), options=options).bytes())

    def exists(self, key: str) -> bool:
        """See `LocalStorage.exists`."""
        with self._errors("look up", key):
            try:
                _obstore().head(self._store, self._name(key))
            except FileNotFoundError:
                return False
            return True

    def keys(self, prefix: str) -> Iterator[str]:
        """See `LocalStorage.keys`."""
        return (key for key, _, _ in self.listed(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the keys of all objects below a prefix with their sizes in bytes."""
        return {key: num_bytes for key, num_bytes, _ in self.listed(prefix)}

    def listed(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """Yield the key, the size in bytes and the time of the put (Unix time) of all objects below a prefix."""
        with self._errors("list", prefix):
            for batch in _obstore().list(self._store, self._name(prefix)):
                yield from ((item["path"], item["size"], item["last_modified"].timestamp()) for item in batch)

    def names(self, prefix: str) -> list[str]:
        """See `LocalStorage.names`."""
        with self._errors("list", prefix):
            found = _obstore().list_with_delimiter(self._store, self._name(prefix))["common_prefixes"]
            return sorted(path.rsplit("/", 1)[-1] for path in found)

    def delete(self, key: str) -> None:
        """See `LocalStorage.delete`; if interrupted, the next deletion deletes the remaining objects."""
        self._local.delete(key)
        with self._errors("delete", key):
            doomed = [entry["path"] for batch in _obstore().list(self._store, self._name(key)) for entry in batch]
            for path in doomed or [self._name(key)]:
                with contextlib.suppress(FileNotFoundError):
                    _obstore().delete(self._store, path)

    def prepare(self, prefix: str) -> Path:
        """See `LocalStorage.prepare`."""
        return self._local.prepare(prefix)

    def publish(self, staged: Path, folder: str, manifest: str, *, replace: bool = False) -> bool:
        """See `LocalStorage.publish`: the manifest is put last, which makes the folder an artifact.

        Leftovers of a killed publication are overwritten with equal content, because the name is a digest of the
        content.
        """
        key = f"{folder}/{manifest}"
        published = not replace and self.exists(key)
        if not published:
            for path in sorted(path for path in staged.rglob("*") if path.is_file()):
                if (name := str(path.relative_to(staged))) != manifest:
                    self._upload(path, f"{folder}/{name}")
            with storage_errors("read", staged):
                content = (staged / manifest).read_bytes()
            if replace:
                self.put(key, content)
            else:
                published = not self.put_if(key, content, None)
        with storage_errors("delete", staged):
            shutil.rmtree(staged)
        return not published

    def directory(self, key: str) -> Path:
        """See `LocalStorage.directory`: returns a path in the working folder of this machine."""
        return self._local.directory(key)

    def local_copy(self, key: str) -> Path:
        """See `LocalStorage.local_copy`: fetches into the working folder, where it stays until the cache is cleared."""
        path = self._local.path(key)
        if not path.is_file():
            self.fetch(key)
        return path

    def keep(self, key: str) -> None:
        """See `LocalStorage.keep`."""
        path = self._local.path(key)
        if path.is_file():
            self._upload(path, key)

    def discard(self, key: str) -> None:
        """See `LocalStorage.discard`."""
        self._local.delete(key)

    def fetch(self, key: str) -> None:
        """Write an object to its path below `directory`, atomically."""
        with self._errors("read", key):
            content = self._get(key)[0]
        if content is None:
            raise StorageError(f"cannot read {self.location(key)}: there is no such object")
        self._local.put(key, content)

    def _upload(self, path: Path, key: str) -> None:
        with self._errors("write", key), path.open("rb") as file:
            _obstore().put(self._store, self._name(key), file, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def _name(self, key: str) -> str:
        return str(checked_key(key, self.location())) if key else ""

    @contextlib.contextmanager
    def _errors(self, action: str, key: str) -> Iterator[None]:
        """Turn errors of the client into a StorageError of one line, without response body and headers."""
        import obstore.exceptions as refused

        try:
            yield
        except (refused.BaseError, OSError) as error:
            raise StorageError(f"cannot {action} {self.location(key)}: {_meaning(error, self._bucket)}") from None


class _Reader(io.RawIOBase):
    """A random-access reader of one version of an object; `io.BufferedReader` adds the read-ahead."""

    def __init__(self, storage: ObjectStorage, key: str, size: int, version: str | None) -> None:
        self._storage, self._key, self._size, self._version = storage, key, size, version
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a position before the beginning")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        data = self._storage.read_range(self._key, self._position, end, self._version)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _obstore() -> Any:
    import obstore

    return obstore


def _connect(bucket: str, prefix: str, retry_policy: RetryPolicy) -> S3Store:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError:
        raise ConfigError("a root in an object store needs the client library: pip install 'treadle[s3]'") from None
    endpoint = _endpoint()
    if endpoint is not None and not re.fullmatch(r"https?://[A-Za-z0-9._:\[\]-]+(/[^\s?#]*)?", endpoint):
        raise ConfigError("AWS_ENDPOINT_URL must be the address of a server, such as https://host:9000")
    options: Any = {"timeout": f"{retry_policy.request_s:g}s", "connect_timeout": f"{retry_policy.connect_s:g}s"}
    if endpoint is not None and endpoint.lower().startswith("http://"):
        options["allow_http"] = True
    # The client does not accept None for the provider's default endpoint.
    place: Any = {} if endpoint is None else {"endpoint": endpoint}
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            **place,
            client_options=options,
            retry_config={
                "max_retries": retry_policy.retries,
                "retry_timeout": timedelta(seconds=retry_policy.retrying_s),
            },
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"s3://{bucket} cannot be used: {_first_line(error)}; see the AWS_ variables") from None


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def _work_folder(root: str) -> Path:
    """Return a folder for an endpoint and root, below `$TREADLE_WORK` or `work` in the cache."""
    from treadle.core.engines.cache import cache_root

    given = os.environ.get("TREADLE_WORK", "")
    folder = Path(given).expanduser().absolute() if given else cache_root() / "work"
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", root.rpartition("s3://")[2])[:60]
    return folder / f"{name}-{hashlib.sha256(root.encode()).hexdigest()[:12]}"


_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_URL = re.compile(r"performing [A-Z]+ (https?://[^/\s?@]+)/")


def _meaning(error: Exception, bucket: str) -> str:
    """Return one line on what a failure means and what to do."""
    import obstore.exceptions as refused

    text = str(error)
    if _MISSING_BUCKET in text:
        return f"there is no bucket {bucket}; create it, or correct the root and AWS_ENDPOINT_URL"
    if isinstance(error, FileNotFoundError):
        return "there is no such object"
    if "169.254.169.254" in text or "error getting credentials" in text.lower():
        return "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    code, status, url = _CODE.search(text), _STATUS.search(text), _URL.search(text)
    endpoint = url[1] if url else "the endpoint"
    said = f"{status[1]} {code[1] if code else ''}".strip() if status else ""
    if isinstance(error, (refused.PermissionDeniedError, refused.UnauthenticatedError)):
        return f"{endpoint} refuses access ({said}); check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their rights"
    if isinstance(error, refused.PreconditionError):
        return "other processes keep replacing it; run the same command again"
    if said:
        return f"{endpoint} keeps answering {said}; run the same command again later: what was finished is kept"
    if url:
        return f"{endpoint} does not answer; check AWS_ENDPOINT_URL and the network, then run the same command again"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200]
