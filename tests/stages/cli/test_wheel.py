"""The built wheel, with nothing but the packages that it names, outside of a checkout."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]


def _needed(requirements: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return the installed distributions that requirements name, directly or not, without those of extras."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [Requirement(one) for one in requirements]
    while wanted:
        one = wanted.pop()
        extras = [*one.extras, ""]
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
            name = canonicalize_name(one.name)
            if name not in found:
                found[name] = metadata.distribution(name)
            own = [Requirement(text) for text in found[name].requires or ()]
            wanted += [
                more
                for more in own
                if canonicalize_name(more.name) not in found
                and (more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in extras))
            ]
    return found


def _linked(folder: Path, distributions: Iterable[metadata.Distribution]) -> None:
    """Fill a folder with links to the files of distributions, as if only they were installed there."""
    folder.mkdir()
    for one in distributions:
        for file in one.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(str(one.locate_file(top)))


def _run(*words: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words, cwd=cwd, env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), **environ}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.sweep
def test_installed_wheel_runs_the_tutor_demo(tmp_path: Path) -> None:
    source, dist, place = tmp_path / "source", tmp_path / "dist", tmp_path / "place"
    place.mkdir()
    # setuptools writes next to the sources.
    _run("git", "clone", "-q", ROOT, source, cwd=place)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", dist, source, cwd=place)
    (wheel,) = dist.glob("treadle-*.whl")
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv/bin/python"
    _run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=place)
    code = "from importlib.metadata import requires; print(*requires('treadle'), sep='\\n')"
    _linked(tmp_path / "packages", _needed(_run(python, "-c", code, cwd=place).stdout.splitlines()).values())
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{tmp_path / 'packages'}\n")

    small = ("--set", "pools.max_questions=6", "--set", "rollouts.max_questions=5")
    done = _run(tmp_path / "venv/bin/treadle", "demo", "--tutor-only", *small, cwd=place)
    assert "tutor (rules, no language model)" in done.stdout
    assert (place / "outputs/demo-tutor.html").is_file()
    assert str(ROOT) not in done.stdout + done.stderr
