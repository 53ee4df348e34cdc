"""Device nodes of sandboxes: each has its own on a read-only file system if root starts it, and all share otherwise."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sandbox.sandbox_probes import ALL
from support.sandbox.sandbox_users import TESTS, USERS, probes_command, report_of

from treadle.agent.sandbox import device_nodes
from treadle.agent.sandbox.bubblewrap import find_bubblewraps
from treadle.agent.sandbox.guardian import Guardian, finish

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")

CHANGE_NODES = """
import ctypes, errno, os, sys
folder = sys.argv[1]
# A writable mount of a file system that is read-only.
assert ctypes.CDLL(None).mount(None, folder.encode(), None, ctypes.c_ulong(0x1020), None) == 0
assert len(os.listdir(folder)) == 4
for path in (f"{folder}/{name}" for name in os.listdir(folder)):
    for change in (os.utime, os.unlink, lambda path: os.chmod(path, 0o600), lambda path: os.chown(path, 1, 1),
                   lambda path: os.setxattr(path, "trusted.x", b"x"), lambda path: os.link(path, path + "x")):
        try:
            print(change(path))
        except OSError as error:
            print(errno.errorcode[error.errno])
    os.close(os.open(path, os.O_RDWR))
"""


@pytest.mark.parametrize("user", USERS)
def test_only_root_gives_each_sandbox_its_own_devices(user: str) -> None:
    """Two sandboxes exist at once, and each gets a lock on its nodes."""
    code = f"import fcntl, os, time\nnames = {list(device_nodes.DEVICES)}\nheld = open('/dev/null', 'w')\n"
    code += "held.write('x')\nopen('/dev/urandom', 'rb').read(1)\nfcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    code += "time.sleep(1)\nprint([(os.stat(f'/dev/{name}').st_dev, os.stat(f'/dev/{name}').st_ino) for name in names])"
    of_the_host = [(os.stat(f"/dev/{name}").st_dev, os.stat(f"/dev/{name}").st_ino) for name in device_nodes.DEVICES]
    task = {"kind": "bubblewrap", "packages": [], "programs": [code, f"# another\n{code}"], "at_once": True}
    outcomes = report_of(user, task)["outcomes"].values()
    assert {one["status"] for one in outcomes} == {"ok"}
    seen = [set(ast.literal_eval(one["text"])) for one in outcomes]
    if user == "root":
        assert set.intersection(*seen) == set()
        assert set.union(*seen).isdisjoint(of_the_host)
    else:
        assert seen == [set(of_the_host)] * 2


@needs_root
def test_root_itself_cannot_change_mounted_nodes() -> None:
    with Guardian() as guardian:
        command = [sys.executable, "-c", CHANGE_NODES, device_nodes.FOLDER]
        status, output, errors = finish(guardian.start(command, env={}, cwd=Path("/"), own_nodes=True), b"", 20)
    assert (status.code, errors) == (0, b"")
    assert set(output.decode().split()) == {"EROFS"}


@needs_root
def test_machine_with_shared_mounts_does_not_see_the_nodes() -> None:
    script = '"$0" -S -E -I "$1" && cat /proc/self/mountinfo'
    command = ["unshare", "--mount", "--propagation", "shared", "sh", "-c", script]
    seen = subprocess.run([*command, sys.executable, device_nodes.__file__], capture_output=True, text=True, check=True)
    assert " shared:" in seen.stdout
    assert " tmpfs treadle " not in seen.stdout


@needs_root
def test_root_that_may_not_make_nodes_shares_those_of_the_machine() -> None:
    names = [name for name in ALL if "devices" in name]
    command = probes_command("root", {"kind": "bubblewrap", "names": names})
    outcomes = json.loads(_output_without("CAP_MKNOD", command))["outcomes"]
    assert {name: one["text"] for name, one in outcomes.items()} == dict.fromkeys(names, "held")


@needs_root
def test_sandbox_whose_nodes_cannot_be_mounted_does_not_start() -> None:
    code = "from pathlib import Path\nfrom treadle.agent.sandbox.guardian import Guardian, finish\n"
    code += "with Guardian() as guardian:\n"
    code += "    guarded = guardian.start(['/bin/echo', 'x'], env={}, cwd=Path('/'), own_nodes=True)\n"
    code += "    print(finish(guarded, b'', 20))"
    output = _output_without("CAP_SYS_ADMIN", [sys.executable, "-c", code])
    assert "error='[Errno 1] mount namespace: Operation not permitted'" in output
    assert "b'x" not in output


def _output_without(capability: str, command: list[str]) -> str:
    """Run a command as root without a capability; return its output."""
    prefix = [str(find_bubblewraps()[0]), "--dev-bind", "/", "/", "--cap-drop", capability, "--"]
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=180, check=False, cwd=TESTS)
    assert done.returncode == 0, done.stderr
    return done.stdout
