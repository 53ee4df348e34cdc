"""The second level of isolation: what programs get there, and when it is offered or refused."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.sandbox.sandbox_users import USERS, openly_readable, report_of
from support.sweep import sampled

from treadle.agent.sandbox.bubblewrap import find_bubblewraps

PROGRAMS = {
    "import numpy\nint(numpy.linalg.det(2 * numpy.eye(3)).round())": ("ok", "8"),
    "import numpy\nnumpy.arange(3)[7]": ("error", "IndexError: index 7 is out of bounds for axis 0 with size 3"),
    "import sympy\nsympy.Integer(3) + 1": ("ok", "4"),
    "exit(3)": ("error", "The program ended with exit code 3."),
    "import os\nos.abort()": ("error", "The program was killed by signal 6."),
    "import os, tempfile\nprint(os.listdir())": ("ok", "[]"),
    "open('x', 'w')": ("error", "PermissionError: [Errno 13] Permission denied: 'x'"),
    "import subprocess\nsubprocess.run(['true'])": ("error", "PermissionError: [Errno 1] Operation not permitted"),
    "import pytest": ("error", "ModuleNotFoundError: No module named 'pytest'"),
    "import threading\nx = threading.Thread(target=print, args=('done',)).start()": ("ok", "done"),
    "import asyncio\nasyncio.run(asyncio.sleep(0, 'woke'))": ("ok", "woke"),
    "open('/dev/null', 'w').write('gone')": ("ok", "4"),
    "import sqlite3, ssl, zlib, ctypes, decimal, lzma\nctypes.CDLL('libm.so.6').abs(-2)": ("ok", "2"),
}
"""Program -> status, last line of the text."""


@pytest.mark.parametrize("user", sampled(USERS, USERS[:1]))
def test_programs_without_files_and_subprocesses_run_normally(user: str) -> None:
    task = {"kind": "landlock", "packages": ["numpy", "sympy"], "programs": list(PROGRAMS)}
    outcomes = report_of(user, task)["outcomes"]
    ends = {program: (one["status"], one["text"].splitlines()[-1]) for program, one in outcomes.items()}
    assert ends == PROGRAMS


def test_tracebacks_contain_no_host_folder() -> None:
    program = "import json, sympy\ntry:\n    json.loads('')\nfinally:\n    sympy.sympify('(')"
    task = {"kind": "landlock", "packages": ["sympy"], "programs": [program], "max_output_chars": None}
    (outcome,) = report_of(USERS[0], task)["outcomes"].values()
    assert 'File "/opt/python/lib/python3.' in outcome["text"]
    assert 'File "/opt/packages/sympy/' in outcome["text"]
    assert str(Path(sys.base_prefix)) not in outcome["text"]
    assert str(Path(sys.prefix)) not in outcome["text"]


def _without_namespaces(filter_end: int) -> list[str]:
    """Return a prefix that runs a command as most containers do: system calls that make namespaces are refused."""
    return [*openly_readable()[:-1], "--seccomp", str(filter_end), "--"]


def _check(kind: str, filter_program: bytes) -> str:
    code = (
        "from treadle.agent.sandbox.bubblewrap import check\nfrom treadle.agent.sandbox.config import SandboxSettings\n"
    )
    code += f"print(check(SandboxSettings(kind={kind!r}, packages=())))"
    inlet, outlet = os.pipe()
    with os.fdopen(outlet, "wb") as stream:
        stream.write(filter_program)
    try:
        command = [*_without_namespaces(inlet), sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, pass_fds=[inlet])
    finally:
        os.close(inlet)
    return done.stdout.strip()


def _filter_of_a_container(hidden: tuple[int, ...] = ()) -> bytes:
    """Return a filter that refuses namespaces and mounts; `hidden` calls are answered as by an older kernel."""
    load, equal, any_bit, answer, refuse, allow = 0x20, 0x15, 0x45, 0x06, 0x00050000, 0x7FFF0000
    clone, clone3, unshare, mount, namespaces = 56, 435, 272, 165, 0x7E020000
    code = [(load, 0, 0, 0)]
    for number in (clone3, *hidden):
        code += [(equal, 0, 1, number), (answer, 0, 0, refuse | errno.ENOSYS)]
    for number in (unshare, mount):
        code += [(equal, 0, 1, number), (answer, 0, 0, refuse | errno.EPERM)]
    code += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 0, 1, namespaces), (answer, 0, 0, refuse | errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *one) for one in [*code, (answer, 0, 0, allow)])


def test_landlock_works_and_is_suggested_if_namespaces_are_unavailable() -> None:
    assert _check("landlock", _filter_of_a_container()) == "None"
    message = _check("bubblewrap", _filter_of_a_container())
    assert "programs cannot be isolated here" in message
    assert "kernel.unprivileged_userns_clone=1" in message
    assert 'write `kind = "landlock"`' in message


def test_landlock_is_refused_and_not_suggested_if_unsupported() -> None:
    create_ruleset = 444
    without = _filter_of_a_container(hidden=(create_ruleset,))
    message = _check("landlock", without)
    assert "no Landlock" in message
    assert "older than Linux 5.13" in message
    message = _check("bubblewrap", without)
    assert "programs cannot be isolated here" in message
    assert 'kind = "landlock"' not in message


def test_interpreter_readable_only_by_root_is_named(tmp_path: Path) -> None:
    """Root's programs run as another user; an ordinary user's own programs can read what the user can."""
    closed = tmp_path / "closed"
    closed.mkdir()
    code = "from pathlib import Path\nfrom treadle.agent.sandbox.bubblewrap import check\n"
    code += "from treadle.agent.sandbox.config import SandboxSettings\n"
    code += f"python = Path('{closed}/python/bin/python3')\n"
    code += "print(check(SandboxSettings(kind='landlock', packages=(), interpreter=python)))"
    prefix = [str(find_bubblewraps()[0]), "--dev-bind", "/", "/", "--perms", "0700", "--tmpfs", str(closed)]
    command = [*prefix, "--bind", sys.base_prefix, f"{closed}/python", "--", sys.executable, "-c", code]
    message = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    if os.geteuid() == 0:
        assert "a user other than root, which cannot enter /" in message
        assert "sandbox.interpreter" in message
    else:
        assert message == "None"
