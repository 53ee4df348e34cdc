"""Processing of a page's bytes before its reader gets them."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.web.pages.worker import decompressed
from treadle.web.types import Unfetchable


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


_PACKERS = {
    "": lambda data: data,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate without its header": _raw_deflate,
}


@pytest.mark.parametrize("packing", _PACKERS)
@given(data=st.binary(max_size=300))
def test_compressed_bodies_round_trip(packing: str, data: bytes) -> None:
    assert decompressed(_PACKERS[packing](data), packing.split(" ")[0], 300) == data


@pytest.mark.parametrize("packing", _PACKERS)
def test_body_at_the_limit_passes_and_one_byte_more_does_not(packing: str) -> None:
    encoding = packing.split(" ")[0]
    assert len(decompressed(_PACKERS[packing](bytes(1_000)), encoding, 1_000)) == 1_000
    with pytest.raises(Unfetchable, match="more than 1000 bytes") as caught:
        decompressed(_PACKERS[packing](bytes(1_001)), encoding, 1_000)
    assert caught.value.kind == "too_large"


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"plain", "br"),
        (b"plain", "gzip, gzip"),
        (b"plain", "gzip"),
        (b"plain", "deflate"),
        (b"", "gzip"),
        (gzip.compress(b"x" * 100, mtime=0)[:-10], "gzip"),
        (gzip.compress(b"x" * 100, mtime=0)[:-6] + b"broken", "gzip"),
        (zlib.compress(b"x" * 100)[:-5], "deflate"),
    ],
)
def test_mislabelled_compressed_bodies_are_refused(body: bytes, encoding: str) -> None:
    with pytest.raises(Unfetchable) as caught:
        decompressed(body, encoding, 1_000)
    assert caught.value.kind == "encoding"


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "", "zstd"]))
def test_any_bytes_give_a_bounded_body_or_a_refusal(body: bytes, encoding: str) -> None:
    try:
        assert len(decompressed(body, encoding, 100)) <= 100
    except Unfetchable as error:
        assert error.kind in ("encoding", "too_large")
