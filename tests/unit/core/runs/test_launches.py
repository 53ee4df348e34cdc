"""The record of a launch: what was started, from which code, without a secret."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.launches import LaunchRecord, installed_packages, read_launch, record_launch
from treadle.core.runs.provenance import package_versions
from treadle.core.runs.run import Run

SECRET = "q8Zk2LmV7xT4"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory: a checkout with a changed, an untracked and an ignored file."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("MY_API_KEY", SECRET)
    (checkout / ".gitignore").write_text("ignored.txt\n")
    (checkout / "own.py").write_text("class Own: pass\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "First"]):
        subprocess.run(["git", *words], check=True)
    (checkout / "own.py").write_text(f"class Own: key = '{SECRET}'\n")
    (checkout / "new.py").touch()
    (checkout / "ignored.txt").touch()
    return checkout


def launches(root: Path) -> list[Path]:
    return sorted((root / "runs/r/launches").iterdir())


def launched(root: Path, config: dict[str, Any], config_input: str = "") -> LaunchRecord:
    run = Run.create(root, "r", config, {})
    record_launch(run, config, config_input, ())
    (path,) = launches(root)
    assert SECRET not in path.read_text()
    return read_launch(path)


@pytest.mark.covers("service-23")
def test_record_has_configuration_code_packages_and_names_of_variables(tmp_path: Path, folder: Path) -> None:
    config = {"seed": 1, "companions": [{"name": "desk"}], "selection": {"code_file": str(folder / "own.py")}}
    record = launched(tmp_path / "root", config, "seed = 1\n")
    (mine, *_) = record.git
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert (mine.folder, mine.commit, mine.untracked) == (str(folder), commit, ("new.py",))
    assert "-class Own: pass" in mine.diff and "+class Own: key = '[MY_API_KEY]'" in mine.diff
    assert record.sources == {str(folder / "own.py"): "class Own: key = '[MY_API_KEY]'\n"}
    assert (record.config, record.config_input) == (config, "seed = 1\n")
    assert set(record.variables) == set(os.environ) and (record.pid, record.folder) == (os.getpid(), str(folder))
    assert record.command and record.packages == installed_packages()


def test_all_installed_packages_are_found_without_reading_their_metadata() -> None:
    found = installed_packages()
    expected = package_versions(("numpy", "orjson", "pydantic", "pyarrow"))
    assert {name: found[name] for name in ("numpy", "orjson", "pydantic", "pyarrow")} == {
        name: version for name, version in expected.items() if name != "python"
    }


def test_each_launch_has_its_own_record_and_a_process_one_per_configuration(tmp_path: Path, folder: Path) -> None:
    run = Run.create(tmp_path, "r", {}, {})
    for seed in (1, 1, 2):
        record_launch(run, {"seed": seed}, "")
    assert [(path.name, read_launch(path).config["seed"]) for path in launches(tmp_path)] == [
        ("1.json", 1),
        ("2.json", 2),
    ]


def test_folder_that_is_no_checkout_has_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = launched(tmp_path / "root", {})
    assert all(Path(one.folder) not in (tmp_path, *tmp_path.parents) for one in record.git)


def test_missing_and_changed_records_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_launch(tmp_path / "none.json")
    launched(tmp_path, {"seed": 1})
    (path,) = launches(tmp_path)
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 2'))
    with pytest.raises(RunError, match="has changed since it was written"):
        read_launch(path)


def test_bytes_that_are_no_text_do_not_stop_a_launch(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.fsdecode(b"r\xe9")
    monkeypatch.setattr("sys.argv", ["treadle", odd])
    monkeypatch.setenv(odd, "x")
    (inner := folder / odd).mkdir()
    monkeypatch.chdir(inner)
    record = launched(tmp_path / "root", {"selection": {"code_file": str(folder)}})
    assert record.command == ("treadle", "r\ufffd") and "r\ufffd" in record.variables
    assert record.folder == f"{folder}/r\ufffd" and record.sources == {}


def test_folder_that_was_deleted_does_not_stop_a_launch(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := folder / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert launched(tmp_path / "root", {}).folder == ""
    monkeypatch.chdir(tmp_path)


def test_checkout_without_a_commit_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (new := tmp_path / "new").mkdir()
    monkeypatch.chdir(new)
    subprocess.run(["git", "init", "-q"], check=True)
    launched(tmp_path / "root", {})
    (line,) = [one.getMessage() for one in caplog.records if str(new) in one.getMessage()]
    assert "git says: fatal" in line and "Command" not in line
