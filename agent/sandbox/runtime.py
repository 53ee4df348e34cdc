"""Find the files of the host that a program needs: interpreter, standard library, packages, shared libraries.

The sandbox shows only these files, under fixed paths, so that tracebacks are the same on every machine and contain no
user's name.
"""

from __future__ import annotations

import functools
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import SandboxError

PREFIX = "/opt/python"
LIBRARIES = f"{PREFIX}/libs"
PACKAGES = "/opt/packages"

_FACTS = r"""
import importlib.metadata as metadata, json, os, re, sys, sysconfig
names = json.loads(sys.argv[1])
owners = metadata.packages_distributions()
todo, seen, roots, versions, missing = [], set(), {}, {}, []
for name in names:
    found = owners.get(name.partition(".")[0])
    todo += found or []
    missing += [] if found else [name]
while todo:
    name = todo.pop()
    if name in seen:
        continue
    seen.add(name)
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        continue
    versions[package.metadata["Name"]] = package.version
    for file in package.files or []:
        top = file.parts[0]
        if top not in ("..", "__pycache__", "bin", "/") and not top.endswith(".dist-info"):
            roots[top] = os.path.realpath(package.locate_file(top))
    todo += [re.split(r"[\s<>=!~;\[(]", text)[0] for text in package.requires or [] if "extra ==" not in text]
print(json.dumps({
    "executable": os.path.realpath(sys.executable), "version": sys.version.split()[0],
    "short": "%d.%d" % sys.version_info[:2], "platlibdir": sys.platlibdir,
    "stdlib": os.path.realpath(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix})),
    "platstdlib": os.path.realpath(os.path.join(sysconfig.get_path("stdlib"), "lib-dynload")),
    "packages": roots, "versions": versions, "missing": missing,
}))
"""
_SKIPPED_MODULES = ("_tkinter", "nis", "_curses", "readline")
"""Extension modules that are useless without a terminal or a display; their shared libraries are left out."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Files of the host that a sandbox shows read-only."""

    executable: str
    """Path of the interpreter in the sandbox."""
    binds: tuple[tuple[str, str], ...]
    """(path in the sandbox, path on the host)."""
    hidden: tuple[str, ...]
    """Paths of folders in the sandbox that an empty folder covers."""
    python_version: str
    package_versions: tuple[tuple[str, str], ...]


@functools.cache
def find_runtime(interpreter: Path, packages: tuple[str, ...]) -> Runtime:
    """Run the interpreter to find its files and packages; raise SandboxError. Cached: it takes about a second."""
    facts = _ask(interpreter, packages)
    if facts["missing"]:
        raise SandboxError(
            f"package {facts['missing'][0]!r} of sandbox.packages is not installed for {interpreter}; "
            "install it there, or remove it from the list"
        )
    library = f"{PREFIX}/{facts['platlibdir']}/python{facts['short']}"
    stdlib, dynload = Path(facts["stdlib"]), Path(facts["platstdlib"])
    executable = f"{PREFIX}/bin/python{facts['short']}"
    binds = {executable: facts["executable"], library: str(stdlib)}
    if not dynload.is_relative_to(stdlib):
        binds[f"{library}/lib-dynload"] = str(dynload)
    packages_at = {f"{PACKAGES}/{name}": path for name, path in facts["packages"].items()}
    objects = [Path(facts["executable"]), *_extensions(dynload)]
    for path in packages_at.values():
        objects += sorted(Path(path).rglob("*.so*")) if Path(path).is_dir() else []
    binds |= packages_at | _libraries(objects, inside=[stdlib, *map(Path, packages_at.values())])
    hidden = (f"{library}/site-packages",) if (stdlib / "site-packages").is_dir() else ()
    return Runtime(executable, tuple(binds.items()), hidden, facts["version"], tuple(sorted(facts["versions"].items())))


def _ask(interpreter: Path, packages: tuple[str, ...]) -> dict[str, Any]:
    command = [str(interpreter), "-I", "-c", _FACTS, json.dumps(packages)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True, stdin=subprocess.DEVNULL)
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(
            f"sandbox.interpreter {interpreter} does not work as a Python interpreter: {error}"
        ) from error
    return facts


def _extensions(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.so")) if not path.name.startswith(_SKIPPED_MODULES)]


def _libraries(objects: list[Path], inside: list[Path]) -> dict[str, str]:
    """Return the shared libraries that some binaries load, as path in the sandbox -> host path.

    Libraries in the folders `inside` are left out. `objects` are executables and extension modules.
    """
    try:
        done = subprocess.run(["ldd", *map(str, objects)], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"cannot list shared libraries: ldd does not work ({error}); install libc-bin") from error
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] == "=>" and words[2].startswith("/"):
            path = Path(words[2]).resolve()
            if not any(path.is_relative_to(folder) for folder in inside) and path.parent.suffix != ".libs":
                found.setdefault(f"{LIBRARIES}/{words[0].rpartition('/')[2]}", str(path))
        elif line.startswith("\t/"):  # the loader, which must have the path that the executable names
            found[words[0]] = str(Path(words[0]).resolve())
    return found
