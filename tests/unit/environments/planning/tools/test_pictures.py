"""Pictures: type and size from their first bytes, and where their bytes may come from."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage
from treadle.environments.planning.tools.picture_sources import NoPicture, read_file
from treadle.environments.planning.tools.pictures import NotAPicture, PictureStore, read_picture

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480) + b"\x08\x02\0\0\0rest"
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\0" + bytes(9) + b"\xff\xff\xc2\x00\x11\x08" + struct.pack(">HH", 480, 640)
PICTURES = {
    "image/png": PNG,
    "image/jpeg": JPEG,
    "image/gif": b"GIF89a" + struct.pack("<HH", 640, 480) + b"\0\0\0",
    "image/bmp": b"BM" + bytes(12) + b"\x28\0\0\0" + struct.pack("<ii", 640, -480),
}
WEBP = {
    "VP8X": b"VP8X" + bytes(8) + struct.pack("<I", 639)[:3] + struct.pack("<I", 479)[:3],
    "VP8L": b"VP8L" + bytes(4) + b"\x2f" + struct.pack("<I", 639 | 479 << 14),
    "VP8 ": b"VP8 " + bytes(7) + b"\x9d\x01\x2a" + struct.pack("<HH", 640, 480),
}
PICTURES |= {f"image/webp {name}": b"RIFF\0\0\0\0WEBP" + chunk for name, chunk in WEBP.items()}


@pytest.mark.parametrize("name", PICTURES)
def test_type_and_size_come_from_the_bytes(name: str) -> None:
    picture = read_picture(PICTURES[name], 640 * 480)
    assert (picture.media_type, picture.width, picture.height) == (name.split()[0], 640, 480)
    with pytest.raises(NotAPicture):
        read_picture(PICTURES[name], 640 * 480 - 1)


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_beginning_of_a_picture_is_none(name: str, share: float) -> None:
    data = PICTURES[name].removesuffix(b"\x08\x02\0\0\0rest").removesuffix(b"\0\0\0")
    with pytest.raises(NotAPicture):
        read_picture(data[: int(len(data) * share)])


@given(st.sampled_from([b"", *(data[:16] for data in PICTURES.values()), b"\xff\xd8\xff"]), st.binary(max_size=200))
def test_hostile_bytes_are_a_picture_or_refused(head: bytes, rest: bytes) -> None:
    try:
        picture = read_picture(head + rest, 10**6)
    except NotAPicture:
        return
    assert 0 < picture.width * picture.height <= 10**6


@pytest.mark.parametrize(
    "data", [b"<svg width='1' height='1'/>", b"%PDF-1.7", b"", b"BM" + bytes(40), b"RIFF\0\0\0\0WAVE"]
)
def test_other_files_are_no_pictures(data: bytes) -> None:
    with pytest.raises(NotAPicture):
        read_picture(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a picture, next to a file that is none of its own."""
    folder = tmp_path / "pictures"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "a.png").write_bytes(PNG)
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "out").symlink_to(tmp_path)
    (folder / "link.png").symlink_to(tmp_path / "secret")
    (folder / "inner.png").symlink_to(folder / "below" / "a.png")
    os.mkfifo(folder / "pipe")
    return folder


def test_pictures_of_the_folder_are_read_by_either_path(folder: Path, tmp_path: Path) -> None:
    assert read_file(folder, "below/a.png", 1000) == PNG
    assert read_file(folder, str(folder / "below" / "a.png"), 1000) == PNG
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    assert read_file(linked, str(linked / "below" / "a.png"), 1000) == PNG


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "below/../../secret",
        "out/secret",
        "link.png",
        "inner.png",
        "pipe",
        "below",
        "missing.png",
        "below/a.png/x",
        "/etc/passwd",
        "~/secret",
        "file:secret",
        "",
        ".",
        "/",
        "a\0b",
        "x" * 5000,
        "\ud800",
    ],
)
def test_no_other_file_is_read(folder: Path, name: str) -> None:
    with pytest.raises(NoPicture) as caught:
        read_file(folder, name, 1000)
    assert str(folder.parent) not in str(caught.value)


def test_absolute_path_next_to_the_folder_is_refused(folder: Path) -> None:
    for name in (f"{folder}/../secret", str(folder.parent / "secret"), f"{folder}x/a.png"):
        with pytest.raises(NoPicture):
            read_file(folder, name, 1000)


def test_large_file_and_missing_folder_are_refused(folder: Path) -> None:
    with pytest.raises(NoPicture):
        read_file(folder, "below/a.png", len(PNG) - 1)
    with pytest.raises(NoPicture):
        read_file(None, "below/a.png", 1000)


def test_store_keeps_the_first_picture_of_a_url(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    store = PictureStore(KeyedStore(storage, "pictures"), KeyedStore(storage, "urls"))
    first, other = read_picture(PNG), read_picture(JPEG)
    assert store.of_url("http://a/x") is None
    assert store.add_url("http://a/x", first) == first
    assert store.add_url("http://a/x", other) == first
    assert store.of_url("http://a/x") == store.get(first.digest) == first
    assert store.add_url("http://a/y", first) == first
    assert store.get("0" * 32) is None
