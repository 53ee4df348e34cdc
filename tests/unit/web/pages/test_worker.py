"""Processing of a page's bytes before its reader gets them."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.web.pages.worker import unpacked
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
def test_packed_bodies_come_out_as_they_were(packing: str, data: bytes) -> None:
    assert unpacked(_PACKERS[packing](data), packing.split(" ")[0], 300) == data


@pytest.mark.parametrize("packing", _PACKERS)
def test_a_body_of_exactly_the_limit_passes_and_one_byte_more_does_not(packing: str) -> None:
    encoding = packing.split(" ")[0]
    assert len(unpacked(_PACKERS[packing](bytes(1_000)), encoding, 1_000)) == 1_000
    with pytest.raises(Unfetchable, match="more than 1000 bytes") as caught:
        unpacked(_PACKERS[packing](bytes(1_001)), encoding, 1_000)
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
def test_bodies_that_are_not_packed_as_they_say_are_refused(body: bytes, encoding: str) -> None:
    with pytest.raises(Unfetchable) as caught:
        unpacked(body, encoding, 1_000)
    assert caught.value.kind == "encoding"


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "", "zstd"]))
def test_whatever_bytes_come_there_are_bytes_within_the_limit_or_a_refusal(body: bytes, encoding: str) -> None:
    try:
        assert len(unpacked(body, encoding, 100)) <= 100
    except Unfetchable as error:
        assert error.kind in ("encoding", "too_large")
