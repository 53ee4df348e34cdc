"""Run the hidden tests of a task on the workspace of an ended episode, and read which of them passed.

The agent wrote the workspace, so everything in it may try to look like success. What is done about that, and what is
not: docs/behaviour/workspace.md.
"""

from __future__ import annotations

import fnmatch
import json
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path

from treadle.agent.contract import Outcome
from treadle.agent.tools.workspace.backend import FOLDER, SCRATCH, CommandResult, Workspace
from treadle.agent.tools.workspace.files import HiddenTests, packed, parents_of

_HARNESS = f"{SCRATCH}/treadle"
_PLUGIN = "treadle_report"
STEERING_FILES = (
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc", "__pycache__"),
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"),
    *("test_*.py", "*_test.py"),
)
"""Names of files that change which tests run or what they mean; the agent's are deleted, the task's are restored."""
_TEST_FOLDERS = frozenset({"test", "tests"})
_SITE = """
import os, sys
if os.environ.get("PYTHONSAFEPATH"):
    import pickle  # it tries a package of Jython, which a workspace may have
    from importlib.machinery import PathFinder

    class Standard:
        own = list(sys.path)

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if path is not None or name not in sys.stdlib_module_names:
                return None
            spec = PathFinder.find_spec(name, cls.own)
            if spec is None:
                raise ModuleNotFoundError("No module named " + repr(name), name=name)
            return spec

    sys.meta_path.insert(sys.meta_path.index(PathFinder), Standard)
    sys.path += [*{folders!r}, os.getcwd()]
"""
"""Module `sitecustomize` for the tests: modules of the workspace can be imported, but never replace other modules.

They also cannot replace modules of the standard library that exist only on other systems, such as `msvcrt`: the
standard library tries to import those.
"""
_ADDOPTS = f"-p {_PLUGIN} -p no:cacheprovider --import-mode=append"
_PYTEST = re.compile(r"\bpytest\b")
_FAILED = Outcome(0.0, False)


async def run_tests(workspace: Workspace, tests: HiddenTests, given: Mapping[str, bytes]) -> Outcome:
    """Return the outcome: reward 1 and success if all tests passed, else 0; `parts` has 1 or 0 for each test.

    `given` are the task's own files. Raises ToolError if the tests cannot be run.
    """
    folders = _test_folders(tests, given)
    number, restored = secrets.token_hex(16), _restored(tests, given, folders)
    archive = {
        "site/sitecustomize.py": _SITE.format(folders=_import_roots(tests, restored)).encode(),
        f"site/{_PLUGIN}.py": Path(__file__).with_name("pytest_report.py").read_bytes(),
        "site/number": number.encode(),
        "number": number.encode(),
        "prepare.sh": _preparation(tests, given, folders, list(restored)).encode(),
        "files.tar": packed(restored),
    }
    result = await workspace.run(_command(tests, restored), stdin=packed(archive), time_limit_s=tests.timeout_s)
    return _outcome(tests, number, result)


def _modules(tests: HiddenTests) -> list[str]:
    return [path for path in tests.files if path.endswith(".py")]


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _test_folders(tests: HiddenTests, given: Mapping[str, bytes]) -> list[str]:
    """Return the folders that hold tests rather than code; an `__init__.py` in them runs before the tests.

    The workspace itself is always among them, as an empty string: it is never a package.
    """
    code = {_folder_of(path) for path in given if path.endswith(".py") and not _steers(Path(path).name)}
    direct = {_folder_of(path) for path in _modules(tests)} - code
    above = dict.fromkeys(folder for path in _modules(tests) for folder in parents_of(path))
    return ["", *(folder for folder in above if folder in direct or not _TEST_FOLDERS.isdisjoint(folder.split("/")))]


def _import_roots(tests: HiddenTests, restored: Mapping[str, bytes]) -> list[str]:
    """Return the folders from which pytest imports the tests, so that modules next to them come before others."""
    roots = []
    for path in _modules(tests):
        folder = _folder_of(path)
        while folder and f"{folder}/__init__.py" in restored:
            folder = _folder_of(folder)
        if folder:
            roots.append(f"{FOLDER}/{folder}")
    return list(dict.fromkeys(roots))


def _restored(tests: HiddenTests, given: Mapping[str, bytes], folders: list[str]) -> dict[str, bytes]:
    """Return the files to write, path -> content: the tests, and the task's own files that steer tests."""
    steering = {
        path: content
        for path, content in given.items()
        if _steers(Path(path).name) or Path(path).name == "__init__.py" and _folder_of(path) in folders
    }
    below = {parent for path in tests.files for parent in parents_of(path)}
    kept = {
        path: content
        for path, content in steering.items()
        if path not in below and not any(parent in tests.files for parent in parents_of(path))
    }
    return kept | dict(tests.files)


def _steers(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in STEERING_FILES)


def _shadows(tests: HiddenTests, given: Mapping[str, bytes], folders: list[str]) -> list[str]:
    """Return shell patterns of the files that Python would import instead of a test module or a folder above it."""
    theirs = {parent for path in (*given, *tests.files) for parent in parents_of(path)}
    stems = {path.removesuffix(".py") for path in _modules(tests)}
    inits = [f"{folder}/__init__".lstrip("/") for folder in folders]
    files = [f"{name}.py" for name in (*inits, *filter(None, folders)) if name in inits or f"{name}.py" not in given]
    libraries = [f"{shlex.quote(f'./{name}.')}*so" for name in sorted({*stems, *inits, *filter(None, folders)})]
    return [*(shlex.quote(f"./{path}") for path in (*files, *sorted(stems - theirs))), *libraries]


def _preparation(tests: HiddenTests, given: Mapping[str, bytes], folders: list[str], paths: list[str]) -> str:
    """Return a script that removes what steers tests, and everything in the way of the files to write."""
    names = " -o ".join(f"-name {shlex.quote(name)}" for name in STEERING_FILES)
    lines = ["set -e", f"cd {FOLDER}", "chmod -R u+rwX .", f"find . -depth \\( {names} \\) -exec rm -rf {{}} +"]
    for folder in dict.fromkeys(parent for path in paths for parent in parents_of(path)):
        quoted = shlex.quote(f"./{folder}")
        lines.append(f"if [ -L {quoted} ] || [ ! -d {quoted} ]; then rm -rf {quoted}; fi")
    lines += [f"rm -rf {pattern}" for pattern in _shadows(tests, given, folders)]
    lines += [f"rm -rf {shlex.quote(f'./{path}')}" for path in paths]
    lines.append(f"tar -xof {_HARNESS}/files.tar")
    return "\n".join(lines) + "\n"


def _command(tests: HiddenTests, restored: Mapping[str, bytes]) -> str:
    """Return the shell command that prepares the workspace, runs the tests and prints the result.

    The shell parses all of it before any file of the workspace runs. The secret number that marks the true result is
    in a shell variable that is not exported. It is printed after the tests, whose own output is discarded.
    """
    # Texts called test*.txt would be run as doctests.
    uses_doctest = any(b"doctest" in text for text in (tests.command.encode("utf-8", "replace"), *restored.values()))
    environment = {
        "HOME": SCRATCH,
        "TREADLE_PYTHONPATH": "$PYTHONPATH",
        "PYTHONPATH": f"{_HARNESS}/site:$PYTHONPATH",
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": _ADDOPTS if uses_doctest else f"{_ADDOPTS} -p no:doctest",
    }
    variables = " ".join(f'{name}="{value}"' for name, value in environment.items())
    return (
        f"mkdir {_HARNESS} && tar -xof - -C {_HARNESS} && sh {_HARNESS}/prepare.sh >/dev/null 2>&1 "
        f"&& number=$(cat {_HARNESS}/number) && rm {_HARNESS}/number && cd {FOLDER} || exit 99; "
        f"{{ env {variables} sh -c {shlex.quote(tests.command)} </dev/null >/dev/null 2>&1; "
        f'echo "$number $?"; cat {_HARNESS}/site/report.json 2>/dev/null; exit 0; }}'
    )


def _outcome(tests: HiddenTests, number: str, result: CommandResult) -> Outcome:
    if result.ending != "exited":
        return _FAILED
    _, found, rest = result.output.partition(f"{number} ")
    code, _, report = rest.partition("\n")
    if not found:
        return _FAILED
    if not _PYTEST.search(tests.command):
        passed = code == "0"
        return Outcome(float(passed), passed, {"command": float(passed)})
    return _of_report(tests, number, code, report)


def _of_report(tests: HiddenTests, number: str, code: str, report: str) -> Outcome:
    """Return the outcome from pytest's report. Its parts are `test_1`, `test_2`, ...: the tests' names are hidden."""
    try:
        said = json.loads(report)
        is_ours = said["number"] == number
        results = {str(name): bool(passed) for name, passed in said["tests"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _FAILED
    if not is_ours or not results:
        return _FAILED
    wanted = tests.expected or tuple(results)
    passed = [results.get(name, False) for name in wanted]
    success = all(passed) and (bool(tests.expected) or code == "0")
    parts = {f"test_{count}": float(one) for count, one in enumerate(passed, 1)}
    return Outcome(float(success), success, parts)
