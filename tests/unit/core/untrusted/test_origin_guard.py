"""Which requests through a proxy the guard of loopback servers refuses."""

from __future__ import annotations

import pytest

from treadle.core.untrusted.origin_guard import find_refusal

HOST = (b"Host", b"127.0.0.1:4200")
SAME_ORIGIN = (b"Sec-Fetch-Site", b"same-origin")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([HOST], None),
        ([HOST, SAME_ORIGIN], None),
        ([HOST, SAME_ORIGIN, (b"Origin", b"http://127.0.0.1:4200")], None),
        ([HOST, SAME_ORIGIN, (b"Origin", b"https://prefect.example.com")], 403),
        ([(b"Host", b"prefect.example.com"), SAME_ORIGIN, (b"Origin", b"https://prefect.example.com")], 421),
    ],
)
def test_proxy_must_rewrite_the_host_and_drop_or_rewrite_the_origin(
    headers: list[tuple[bytes, bytes]], status: int | None
) -> None:
    refusal = find_refusal("server", "POST", headers, has_query=False)
    assert (refusal and refusal[0]) == status
