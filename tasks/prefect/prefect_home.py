"""Locate the folder of the `treadle prefect up` server, its running process and its password."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import orjson

from treadle.core.engines.cache import cache_root
from treadle.core.store.locks import live_holder
from treadle.core.untrusted.sanitize import one_line

PASSWORD = "PREFECT_API_AUTH_STRING"
"""Prefect's variable for the credentials that clients send, as `USER:PASSWORD`."""
SERVER_PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"
"""Prefect's variable for the credentials that the server expects."""
_API_URL = "PREFECT_API_URL"
_USER = "treadle"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The running server of a home, as seen by another process.

    Attributes:
        pid: The process that runs it.
        doing: The command that the server was started for and ends with; empty for `treadle prefect up`.
    """

    pid: int
    api_url: str
    doing: str


@dataclass(frozen=True, slots=True)
class PrefectHome:
    """Folder with the database and logs of a server; only one server at a time can use it."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Lock file, held by the process that runs the server."""
        return self.folder / "treadle.lock"

    @property
    def place(self) -> Path:
        """File with the URL of the server."""
        return self.folder / "treadle.json"

    @property
    def password_file(self) -> Path:
        """File with `USER:PASSWORD` of the server, readable only by its owner."""
        return self.folder / "treadle.password"

    def password(self) -> str:
        """Return the server's `USER:PASSWORD`: the user's own from the environment, else one made once per home.

        Raises OSError if the home cannot be written.
        """
        if own := os.environ.get(SERVER_PASSWORD):
            return own
        if (kept := self.stored_password()) is not None:
            return kept
        made = f"{_USER}:{secrets.token_urlsafe(24)}"
        self.password_file.unlink(missing_ok=True)
        with os.fdopen(os.open(self.password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made)
        return made

    def stored_password(self) -> str | None:
        """Return the password that this home keeps; None if it has none, or one that others can read."""
        try:
            state, text = self.password_file.stat(), self.password_file.read_text().strip()
        except (OSError, ValueError):
            return None
        is_private = state.st_uid == os.getuid() and not state.st_mode & 0o077
        return text if is_private and text.startswith(f"{_USER}:") and len(text) > len(_USER) + 16 else None

    def running(self) -> RunningServer | None:
        """Return the server that runs from this home, or None."""
        holder = live_holder(self.lock)
        if holder is None:
            return None
        try:
            url = str(orjson.loads(self.place.read_bytes())["api_url"])
        except (OSError, ValueError, KeyError):
            url = "(starting)"
        return RunningServer(holder.pid, url, one_line(holder.doing))


def prefect_home() -> PrefectHome:
    """Return `$PREFECT_HOME`, else Treadle's own folder, so that other uses of Prefect here are unaffected."""
    given = os.environ.get("PREFECT_HOME", "")
    return PrefectHome(Path(given).expanduser().absolute() if given else own_folder())


def own_folder() -> Path:
    """Return the folder used if PREFECT_HOME is not set."""
    return cache_root() / "prefect"


def use_own_password() -> None:
    """Set the password of the server that runs from Prefect's home, if PREFECT_API_URL names that server.

    This gives commands of the same user on the same machine access. A password that is already set is kept.
    """
    if os.environ.get(PASSWORD) or not (url := os.environ.get(_API_URL)):
        return
    home = prefect_home()
    running = home.running()
    if running is not None and running.api_url == url.rstrip("/") and (password := home.stored_password()):
        os.environ[PASSWORD] = password
