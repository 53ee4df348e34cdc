"""Tell whether a companion is ready: by a request, by the text of its log, or both."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from treadle.core.companions.settings import CompanionSettings
from treadle.core.untrusted.sanitize import one_line

PROBE_S = 1.0
"""Longest wait for the answer to one request; a companion that has ended is noticed between two requests."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect: its target may be another server."""


def answers(url: str) -> bool:
    """Return whether a GET request is answered with a status 2xx in time; no proxy is used."""
    return not missing_answer(url)


def missing_answer(url: str) -> str:
    """Return why a GET request gets no answer with a status 2xx in time; empty if it does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(url, timeout=PROBE_S) as response:
            return "" if 200 <= response.status < 300 else f"{url} answered with status {response.status}"
    except urllib.error.HTTPError as error:
        return f"{url} answered with status {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return f"{url} did not answer ({one_line(str(reason) or type(error).__name__)})"


class LogText:
    """A search for a text in a log that grows; the log may hold any bytes."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text.encode()
        self._offset, self._rest, self._found = 0, b"", False

    def found(self) -> bool:
        """Return whether the log has the text by now; each byte is read once."""
        if self._found:
            return True
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while part := file.read(1 << 20):
                self._offset += len(part)
                searched = self._rest + part
                if self._text in searched:
                    self._found = True
                    return True
                # The text may have been cut at the end of what was read.
                self._rest = searched[-(len(self._text) - 1) :] if len(self._text) > 1 else b""
        return False


class Readiness:
    """The readiness of one process of a companion."""

    def __init__(self, settings: CompanionSettings, log: Path) -> None:
        self._url = settings.ready_url
        self._text = LogText(log, settings.ready_text) if settings.ready_text else None
        self._missing = ""

    def is_ready(self) -> bool:
        """Return whether the companion meets all configured conditions now: `ready_text` and `ready_url`."""
        if self._text is not None and not self._text.found():
            self._missing = "it did not print ready_text"
        else:
            self._missing = missing_answer(self._url) if self._url is not None else ""
        return not self._missing

    def why(self) -> str:
        """Return what was missing at the last check of `is_ready`."""
        return self._missing
