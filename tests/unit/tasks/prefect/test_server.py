"""The folder in which `treadle prefect up` keeps its server: one of its own, or the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.core.engines.cache import quiet
from treadle.core.errors import EngineError
from treadle.tasks.prefect.prefect_home import prefect_home
from treadle.tasks.prefect.server import PrefectServer, running_server


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PrefectServer, "start", lambda self: None)
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFECT_HOME", raising=False)


def start() -> Path:
    home = prefect_home()
    with running_server(home, 0, None, quiet):
        return home.folder


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def test_server_folder_is_private_to_its_owner(tmp_path: Path) -> None:
    (tmp_path / "cache/prefect").mkdir(parents=True, mode=0o755)
    assert mode(start()) == 0o700


def test_new_home_is_private_to_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "some/home"))
    assert mode(start()) == 0o700 and mode(tmp_path / "some") != 0o700


def test_custom_home_is_unchanged_except_for_our_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    (tmp_path / "home/logs").mkdir(parents=True)
    (tmp_path / "home").chmod(0o755)
    for name in ("server", "theirs"):
        (tmp_path / f"home/logs/{name}.log").write_text(name)
    start()
    assert mode(tmp_path / "home") == 0o755
    assert {path.name for path in (tmp_path / "home/logs").iterdir()} == {"server.log.old", "theirs.log"}


def test_unwritable_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "file/home"))
    with pytest.raises(EngineError, match="file/home cannot be written .*set PREFECT_HOME"):
        start()
