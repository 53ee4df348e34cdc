"""Check and normalise URLs before they are requested. Which addresses may be connected to is checked in `addresses`."""

from __future__ import annotations

import ipaddress
import re

from yarl import URL

from treadle.web.lease_pool import is_address
from treadle.web.types import MAX_URL_CHARS, Unfetchable

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_HOST_CHARS = 253


def checked_url(text: str, base: URL | None = None) -> URL:
    """Return the normal form of a URL: lower-case ASCII host without a trailing dot, no fragment, no default port.

    An IPv4-mapped IPv6 address becomes the IPv4 address that it represents.

    Args:
        text: URL as given by a search or a `Location` header.
        base: Base of relative URLs. Without it, only absolute ones are accepted.

    Raises:
        Unfetchable: `invalid_url` if it is not http(s), has credentials, or has a host that programs parse differently.
            No other error is raised, whatever the text.
    """
    try:
        return _checked(text.strip(" "), base)
    except Unfetchable:
        raise
    # yarl raises more than ValueError (IndexError for `http://][@`), some of it only when a part is accessed.
    except Exception:  # noqa: BLE001
        raise _invalid("it cannot be parsed") from None


def _checked(text: str, base: URL | None) -> URL:
    if len(text) > MAX_URL_CHARS:
        raise _invalid(f"it is longer than {MAX_URL_CHARS} characters")
    if not text.isprintable() or " " in text:
        raise _invalid("it contains white space or control characters")
    # Parsed again: `join` leaves quoting that yarl itself would not write.
    url = URL(text) if base is None else URL(str(base.join(URL(text))))
    if url.scheme not in ("http", "https"):
        raise _invalid("it is not http or https")
    if url.raw_user is not None or url.raw_password is not None:
        raise _invalid("it contains a user name or password")
    if url.explicit_port == 0:
        raise _invalid("port 0 is none")
    _check_host(url.raw_host or "")
    url = _normal(url)
    if len(str(url)) > MAX_URL_CHARS:
        raise _invalid(f"it is longer than {MAX_URL_CHARS} characters once encoded")
    return url


def _check_host(host: str) -> None:
    """Accept names of letters, digits, - and _, IPv6 addresses, and IPv4 addresses of four decimal numbers only."""
    if ":" in host:
        if not is_address(host) or "%" in host:
            raise _invalid("its host is not an IPv6 address")
        return
    labels = host.removesuffix(".").split(".")
    if len(host) > _MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise _invalid("its host is not a name")
    # Resolvers read 2130706433, 0177.1 and 0x7f.1 as addresses; browsers do so if the last label is a number.
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]) and not is_address(host):
        raise _invalid("its host is neither a name nor an IPv4 address of four decimal numbers")


def _normal(url: URL) -> URL:
    if url.raw_path == "/":  # also for `http://host` without a path
        url = url.with_path("/", keep_query=True)
    if (host := url.raw_host or "").endswith("."):  # a trailing dot marks a fully qualified name
        url = url.with_host(host[:-1])
    elif ":" in host and (mapped := ipaddress.IPv6Address(host).ipv4_mapped) is not None:
        url = url.with_host(str(mapped))  # versions of Python write the mapped form differently
    return url.with_fragment(None).with_port(None if url.is_default_port() else url.explicit_port)


def _invalid(why: str) -> Unfetchable:
    return Unfetchable("invalid_url", why)
