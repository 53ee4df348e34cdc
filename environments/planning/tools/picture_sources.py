"""Get the bytes of pictures that a model names: from one folder, or by URL through the guarded fetcher.

What a model writes is hostile: no path leads out of the folder, neither by `..` nor by links, and no URL to an address
that is not public; see `docs/behaviour/web.md`, "Fetching pages".
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from treadle.environments.planning.tools.pictures import MEDIA_TYPES
from treadle.environments.planning.tools.settings import VisualInspectorSettings
from treadle.web.config import FetchSettings
from treadle.web.pages.fetch import IDENTITY, Fetcher, Wanted
from treadle.web.types import Unfetchable
from treadle.web.urls import checked_url

PICTURE = Wanted("a picture", MEDIA_TYPES | {"image/jpg", "image/x-ms-bmp"}, "image/*", IDENTITY)
"""Kind of content to fetch, with the media types to accept; a picture's own first bytes decide on its type."""
MAX_PATH_CHARS = 4096


class NoPicture(ValueError):
    """A picture that cannot be fetched or read; the message is for the model, and names nothing outside the folder."""


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Limits of fetches of pictures; see `treadle.web.pages.fetch.FetchLimits`."""

    fetch: FetchSettings
    page_timeout_s: float
    max_page_bytes: int


def picture_fetcher(settings: VisualInspectorSettings) -> Fetcher:
    """Return a fetcher of pictures, not opened yet."""
    limits = PictureLimits(settings.fetch, settings.timeout_s, settings.max_bytes)
    return Fetcher(limits, wanted=PICTURE)


def picture_url(name: str) -> str:
    """Return the normal form of a URL. Raises NoPicture for one that cannot be requested."""
    try:
        return str(checked_url(name))
    except Unfetchable as error:
        raise NoPicture(f"the URL cannot be used: {error.detail}") from None


async def fetch_picture(fetcher: Fetcher, url: str, *, deadline: float) -> bytes:
    """Return the bytes at a URL; `deadline` is a time of the event loop.

    Raises NoPicture, and SearchUnavailable if other fetches took all slots until the deadline.
    """
    try:
        return (await fetcher.fetch(url, deadline=deadline)).body
    except Unfetchable as error:
        raise NoPicture(f"the picture cannot be fetched: {error.detail}") from None


def read_file(folder: Path | None, name: str, max_bytes: int) -> bytes:
    """Return the bytes of a file below a folder; `name` is its path relative to the folder, or absolute.

    Raises NoPicture for any other name, for links, for what is no ordinary file, and for more than `max_bytes` bytes.
    """
    if folder is None:
        raise NoPicture("no local pictures are available here; give a URL")
    parts = _parts_below(folder, name)
    with contextlib.ExitStack() as stack:
        try:
            place = _opened(stack, str(folder), os.O_DIRECTORY, None, follow=True)
            for part in parts[:-1]:
                place = _opened(stack, part, os.O_DIRECTORY, place)
            # Opening a pipe must not wait for its writer.
            file = _opened(stack, parts[-1], os.O_NONBLOCK, place)
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise NoPicture("this path is no file")
            if found.st_size > max_bytes:
                raise NoPicture(f"the file has more than {max_bytes} bytes")
            data = _read(file, max_bytes)
        except (OSError, ValueError) as error:
            if isinstance(error, NoPicture):
                raise
            raise NoPicture("there is no such picture") from None
    if len(data) > max_bytes:
        raise NoPicture(f"the file has more than {max_bytes} bytes")
    return data


def _parts_below(folder: Path, name: str) -> tuple[str, ...]:
    if not name or len(name) > MAX_PATH_CHARS or not name.isprintable():
        raise NoPicture("there is no such picture")
    path = PurePosixPath(name)
    if path.is_absolute():
        roots = (PurePosixPath(os.path.abspath(folder)), PurePosixPath(os.path.realpath(folder)))
        root = next((root for root in roots if path.is_relative_to(root)), None)
        if root is None:
            raise NoPicture("only pictures in the folder of this task can be read")
        path = path.relative_to(root)
    if not path.parts or ".." in path.parts:
        raise NoPicture("only pictures in the folder of this task can be read")
    return path.parts


def _opened(stack: contextlib.ExitStack, name: str, flags: int, folder: int | None, *, follow: bool = False) -> int:
    flags |= os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(name, flags, dir_fd=folder)
    stack.callback(os.close, descriptor)
    return descriptor


def _read(descriptor: int, max_bytes: int) -> bytes:
    """Read a file that may grow, up to one byte more than allowed."""
    data = bytearray()
    while len(data) <= max_bytes and (part := os.read(descriptor, max_bytes + 1 - len(data))):
        data += part
    return bytes(data)
