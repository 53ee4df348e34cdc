"""Which URLs are accepted, and their normal forms."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from treadle.web.lease_pool import site_of_url
from treadle.web.types import MAX_URL_CHARS, Unfetchable
from treadle.web.urls import checked_url

REFUSED = {
    "of other schemes": [
        "file:///etc/passwd",
        "file://host/x",
        "ftp://host/x",
        "gopher://host:6379/_x",
        "data:text/html,x",
        "javascript:alert(1)",
        "jar:http://host/!x",
        "unix:///run/docker.sock",
        "http+unix://%2Frun%2Fdocker.sock/x",
        "ws://host/",
        "//host/x",
        "host/x",
        "/x",
        "",
    ],
    "without a host": ["http:", "http://", "http:///x", "http:/host/x", "http:host", "http://?x", "http://:80/"],
    "with credentials": [
        "http://user@host/",
        "http://user:word@host/",
        "http://:word@host/",
        "http://public.org@10.0.0.1/",
    ],
    "with an impossible port": ["http://host:0/", "http://host:65536/", "http://host:-1/", "http://host:x/"],
    "with blanks or control characters": [
        "http://ho st/",
        "http://host/a b",
        "http://host/\r\nX-Header: 1",
        "http://host/\x00",
        "http://host\t/",
        "http://host/\u202e",
        "http://host/\u200b",
        "http://host/\ud800",
        "http://\ud800.org/",
        "http://ex\u00adample.org/",
    ],
    "that programs read in different ways": [
        "http://127.0.0.1\\@host/",
        "http://host\\x/",
        "http://a..org/",
        "http://.org/",
        "http://-a.org/",
        "http://a,b/",
        "http://%31%32%37.0.0.1/",
        "http://host%00.org/",
        "http://[::1",
        "http://[::1%25lo]/",
        "http://[fe80::1%eth0]/",
        "http://" + "a" * 64 + ".org/",
        "http://" + "a." * 130 + "org/",
    ],
    "of an address that is not written as four decimal numbers": [
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://017700000001/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://0/",
        "http://127.0.0.1./",
        "http://127.0.0.01/",
        "http://256.0.0.1/",
        "http://1.2.3.4.5/",
        "http://1.2.3.0x4/",
        "http://host.1/",
    ],
    "that a reader of URLs stumbles over": [
        "http://][@",
        "http://]::1[@",
        "http://[\uff48HTTP:99999]",
        "http://[\uff48HTTP:99999]/x",
    ],
    "that are too long": [
        "http://host/" + "x" * MAX_URL_CHARS,
        "http://host/" + "\u5b57" * (MAX_URL_CHARS // 9),
    ],
}
NORMAL = [
    ("http://host", "http://host/"),
    ("HTTP://HOST:80/A?b#c", "http://host/A?b"),
    ("https://host:443/", "https://host/"),
    ("https://host:80/", "https://host:80/"),
    (" http://host/ ", "http://host/"),
    ("http://host?", "http://host/"),
    ("http://host?q", "http://host/?q"),
    ("http://host/a/../../b", "http://host/b"),
    ("http://a_b.c-d.org./", "http://a_b.c-d.org/"),
    ("https://HOST.:8443/a?b", "https://host:8443/a?b"),
    ("http://b\u00fccher.de\u3002/", "http://xn--bcher-kva.de/"),
    ("http://b\u00fccher.de/\u00e4?q=\u00f6", "http://xn--bcher-kva.de/%C3%A4?q=%C3%B6"),
    ("http://[2606:4700::1]:8080/", "http://[2606:4700::1]:8080/"),
    ("http://[::ffff:127.0.0.1]/", "http://127.0.0.1/"),
    ("http://\uff11\uff12\uff17.\uff10.\uff10.\uff11/", "http://127.0.0.1/"),
    ("http://\u2460\u2461\u2466.0.0.1/", "http://127.0.0.1/"),
    ("http://127\u30020\u30020\u30021/", "http://127.0.0.1/"),
    ("http://\u2113ocalhost/", "http://localhost/"),
]


@pytest.mark.parametrize("text", [text for texts in REFUSED.values() for text in texts])
def test_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(Unfetchable) as refused:
        checked_url(text)
    assert refused.value.kind == "invalid_url"


@pytest.mark.parametrize(("text", "normal"), NORMAL)
def test_url_has_one_normal_form(text: str, normal: str) -> None:
    assert str(checked_url(text)) == normal


@pytest.mark.parametrize(
    ("location", "absolute"),
    [
        ("c", "http://host/a/c"),
        ("/c", "http://host/c"),
        ("?c", "http://host/a/b?c"),
        ("//other/c", "http://other/c"),
        ("https://other:8443/c#d", "https://other:8443/c"),
        ("", "http://host/a/b?q"),
        ("%2ex:y", "http://host/a/.x:y"),
    ],
)
def test_relative_url_is_resolved_if_a_base_is_given(location: str, absolute: str) -> None:
    assert str(checked_url(location, base=URL("http://host/a/b?q"))) == absolute


@pytest.mark.parametrize(
    "text",
    [
        "file:///etc/passwd",
        "//user@host/",
        "http://2130706433/",
        "data:,x",
        "//0x7f.1/x",
        "//][@",
        "http://][@",
        "http://[\uff48HTTP:99999]",
    ],
)
def test_relative_url_has_the_limits_of_an_absolute_one(text: str) -> None:
    with pytest.raises(Unfetchable):
        checked_url(text, base=URL("http://host/a/b?q"))


def test_refused_url_is_not_repeated_in_the_message() -> None:
    """A site's or a model's own text has no place among the words of a failure."""
    for text in (text for texts in REFUSED.values() for text in texts if len(text) > 8):
        with pytest.raises(Unfetchable) as refused:
            checked_url(text)
        assert text not in refused.value.detail


_PIECES = st.sampled_from(
    [
        "http://",
        "https://",
        "a",
        "B.org",
        ":80",
        ":",
        "@",
        "/",
        "?",
        "#",
        "%",
        "[",
        "]",
        "::1",
        "\\",
        "\u00e9",
        "..",
        "127.1",
        "0x7f",
        "+",
        "//",
        "%2e",
        "99999",
        "\uff28",
        "\uff48",
        "\u2488",
        "\u3002",
        "\ud800",
    ]
)
_BASE = URL("http://host/a/b?q")


@given(st.one_of(st.text(max_size=40), st.lists(_PIECES, max_size=8).map("".join)))
@example("][@")
@example("]::1[@")
@example("//][@")
@example("[\uff48HTTP:99999]")
@example("%2ex:y")
def test_any_text_is_refused_or_has_an_idempotent_normal_form(tail: str) -> None:
    for text, base in itertools.product((tail, "http://" + tail), (None, _BASE)):
        try:
            url = checked_url(text, base)
        except Unfetchable as error:
            assert error.kind == "invalid_url"
            continue
        assert url.scheme in ("http", "https") and url.raw_host and str(url).isascii()
        assert "@" not in (url.raw_authority or "") and not url.raw_fragment
        assert str(checked_url(str(url))) == str(url)
        site_of_url(str(url))
