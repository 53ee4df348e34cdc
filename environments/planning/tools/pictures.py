"""Read type and size of a picture from its first bytes, and store pictures of a run under their digest.

Nothing is decoded here: the bytes of a picture are hostile, and only the server of a model decodes them.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass

from treadle.core.store.keyed_store import KeyedStore

PICTURES = "pictures"
"""Name of the store of a run with pictures by digest."""
PICTURE_URLS = "picture_urls"
"""Name of the store of a run with the digest of the picture that each URL had when it was first fetched."""
MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/bmp", "image/webp"})
"""Media types of pictures that are read."""

_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the JPEG segments that hold the size of the picture."""
_MAX_JPEG_SEGMENTS = 10_000
_NOTE = re.compile(r"picture ([0-9a-f]{32})(?:, .*)?")


class NotAPicture(ValueError):
    """Bytes that are no picture of a known type; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: its bytes, its media type, and its size in pixels."""

    data: bytes
    media_type: str
    width: int
    height: int

    @property
    def digest(self) -> str:
        """Key in the store: the first 32 hex digits of the SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()[:32]

    @property
    def note(self) -> str:
        """Note of a call that looked at the picture; further words may follow after a comma."""
        return f"picture {self.digest}"


def noted_picture(note: str) -> str:
    """Return the digest of the picture in the note of a call; empty if it names none."""
    match = _NOTE.fullmatch(note)
    return match[1] if match else ""


def read_picture(data: bytes, max_pixels: int | None = None) -> Picture:
    """Return a picture with the type and size that its own bytes give.

    Raises NotAPicture for other bytes, a size of 0, and more than `max_pixels` pixels.
    """
    try:
        media_type, width, height = _type_and_size(data)
    except (struct.error, IndexError):
        raise NotAPicture("the picture is cut off") from None
    if width < 1 or height < 1:
        raise NotAPicture("the picture has no pixels")
    if max_pixels is not None and width * height > max_pixels:
        raise NotAPicture(f"the picture has {width} x {height} pixels; at most {max_pixels} are allowed")
    return Picture(data, media_type, width, height)


def _type_and_size(data: bytes) -> tuple[str, int, int]:
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        return "image/png", *struct.unpack_from(">II", data, 16)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif", *struct.unpack_from("<HH", data, 6)
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg", *_jpeg_size(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp", *_webp_size(data)
    if data.startswith(b"BM") and data[14:18] in (b"\x0c\0\0\0", b"\x28\0\0\0", b"\x6c\0\0\0", b"\x7c\0\0\0"):
        return "image/bmp", *_bmp_size(data)
    raise NotAPicture("it is not a picture; jpg, png, gif, bmp and webp can be read")


def _bmp_size(data: bytes) -> tuple[int, int]:
    if data[14] == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height)  # A negative height means that rows go down.


def _jpeg_size(data: bytes) -> tuple[int, int]:
    position = 2
    for _ in range(_MAX_JPEG_SEGMENTS):
        if data[position] != 0xFF:
            break
        marker = data[position + 1]
        if marker == 0xFF:  # fill bytes
            position += 1
        elif marker in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", data, position + 5)
            return width, height
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
            position += 2
        else:
            (length,) = struct.unpack_from(">H", data, position + 2)
            position += 2 + max(length, 2)
    raise NotAPicture("the JPEG picture does not say its size")


def _webp_size(data: bytes) -> tuple[int, int]:
    chunk = data[12:16]
    if chunk == b"VP8X":
        width, height = (int.from_bytes(data[place : place + 3], "little") + 1 for place in (24, 27))
        struct.unpack_from("B", data, 29)
        return width, height
    if chunk == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise NotAPicture("the WebP picture does not say its size")


class PictureStore:
    """Pictures of a run, under their digest, and the picture that each URL had first."""

    def __init__(self, pictures: KeyedStore, urls: KeyedStore) -> None:
        """Use the stores `PICTURES` and `PICTURE_URLS` of a run."""
        self._pictures, self._urls = pictures, urls

    def add(self, picture: Picture) -> str:
        """Store a picture and return its digest. Raises StorageError."""
        digest = picture.digest
        self._pictures.add(digest, picture.data)
        return digest

    def add_url(self, url: str, picture: Picture) -> Picture:
        """Store the picture of a URL unless a process has stored one; return the stored one. Raises StorageError."""
        digest = self._urls.add(_url_key(url), self.add(picture).encode()).decode()
        return self.get(digest) or picture

    def of_url(self, url: str) -> Picture | None:
        """Return the picture that a URL had first; None if it was not fetched yet. Raises StorageError."""
        digest = self._urls.get(_url_key(url))
        return None if digest is None else self.get(digest.decode())

    def get(self, digest: str) -> Picture | None:
        """Return a picture by its digest; None if there is none. Raises StorageError and ValueError."""
        data = self._pictures.get(digest)
        return None if data is None else read_picture(data)


def _url_key(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:32]
