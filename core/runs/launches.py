"""Record each launch of a run: command line, configuration, code, packages, names of environment variables."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from treadle.core.config import digest_json
from treadle.core.errors import ConfigError
from treadle.core.runs.provenance import GitState, checkouts
from treadle.core.runs.records import StoredRecord, as_json, json_round_trip, parse_record
from treadle.core.runs.run import Run, utc_now
from treadle.core.untrusted.secrets import redact

_MAX_CHARS = 1 << 20
"""Maximum number of characters of a diff or source file that is kept."""
_DISTRIBUTION = re.compile(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_recorded: dict[tuple[str, str, int], str] = {}
"""Digest of the configuration that this process recorded last, by root, run and process."""


class LaunchRecord(StoredRecord):
    """The content of `launches/<n>.json`; secrets are replaced by the names of their variables."""

    run_id: str
    started_at: str
    """Time of the launch in UTC, ISO 8601."""
    host: str
    pid: int
    folder: str
    """Working directory."""
    command: tuple[str, ...]
    python: str
    packages: dict[str, str]
    """Versions of all installed packages."""
    git: tuple[GitState, ...]
    """Checkouts that hold the working directory and Treadle."""
    sources: dict[str, str]
    """Text of the files of own classes that the configuration names."""
    variables: tuple[str, ...]
    """Names of all environment variables."""
    config: dict[str, Any]
    """Resolved configuration, companions included."""
    config_input: str
    """Configuration files as given; empty for a run that used its own configuration."""


def record_launch(run: Run, config: Mapping[str, Any], config_input: str, secret_names: Collection[str] = ()) -> None:
    """Write the record of a launch of this process; once per run and configuration.

    Raises StorageError if the root cannot be written.
    """
    plain = json_round_trip(config)
    place, digest = (run.storage.location(), run.run_id, os.getpid()), digest_json(plain)
    if _recorded.get(place) == digest:
        return

    def clean(text: str) -> str:
        return redact(_utf8(text), secret_names)[:_MAX_CHARS]

    record = LaunchRecord(
        run_id=run.run_id,
        started_at=utc_now(),
        host=socket.gethostname(),
        pid=os.getpid(),
        folder=_utf8(str(_working_folder() or "")),
        command=tuple(map(clean, sys.argv)),
        python=platform.python_version(),
        packages=installed_packages(),
        git=tuple(
            one.model_copy(update={"diff": clean(one.diff), "folder": _utf8(one.folder)})
            for one in checkouts(_working_folder())
        ),
        sources={_utf8(str(path)): clean(text) for path, text in _sources(plain)},
        variables=tuple(sorted(map(_utf8, os.environ))),
        config=plain,
        config_input=config_input,
    )
    prefix = run.key("launches")
    numbers = [int(Path(key).stem) for key in run.storage.keys(prefix) if Path(key).stem.isdigit()]
    number = max(numbers, default=0) + 1
    while not run.storage.put_if(f"{prefix}/{number}.json", as_json(record), None):
        number += 1
    _recorded[place] = digest


def read_launch(path: Path) -> LaunchRecord:
    """Return a record of a launch; raise ConfigError if there is none, RunError if it cannot be used."""
    try:
        return parse_record(path.read_bytes(), str(path), LaunchRecord)
    except OSError as error:
        raise ConfigError(f"the record {path} cannot be read: {error.strerror or error}") from None


def installed_packages() -> dict[str, str]:
    """Return the versions of all packages that this interpreter can import, from the names of their folders."""
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if (match := _DISTRIBUTION.fullmatch(name)) is not None:
                found.setdefault(match[1].lower().replace("_", "-"), match[2])
    return dict(sorted(found.items()))


def _utf8(text: str) -> str:
    """Return a text of the operating system with bytes that are not UTF-8 replaced, so that it can be stored."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _sources(tree: Any) -> Iterator[tuple[Path, str]]:
    """Yield the path and text of each file with a user's class in a configuration."""
    if isinstance(tree, Mapping):
        file = tree.get("code_file")
        if isinstance(file, str):
            with contextlib.suppress(OSError, ValueError):  # The stage that loads it reports the error.
                yield (path := Path(file)), path.read_text(errors="replace")
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from _sources(item)
