"""The password of Prefect's server: made once, for its owner alone, and found by commands of the same user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.core.store.locks import FileLease
from treadle.tasks.prefect.prefect_home import PASSWORD, SERVER_PASSWORD, PrefectHome, use_own_password
from treadle.tasks.prefect.worker import untrusted_part

URL = "http://127.0.0.1:4299/api"
STEP = "prefect.deployments.steps.set_working_directory"
ENTRYPOINT = "treadle.flows.flywheel.stage"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrefectHome:
    for name in (PASSWORD, SERVER_PASSWORD, "PREFECT_API_URL"):
        # Set first, so that what the code sets is removed at the end of the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    return PrefectHome(tmp_path)


@pytest.fixture
def running(home: PrefectHome) -> Iterator[PrefectHome]:
    lease = FileLease(home.lock, "the Prefect server", doing="")
    home.place.write_text(f'{{"api_url": "{URL}"}}')
    home.password()
    yield home
    lease.release()


def test_home_keeps_one_password_readable_only_by_its_owner(home: PrefectHome) -> None:
    password = home.password()
    assert password == home.password() == home.stored_password() and password.startswith("treadle:")
    assert home.password_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "treadle:", "short", "\x00\xff" * 20, "someone:0123456789abcdef0123456789"])
def test_damaged_password_is_replaced(home: PrefectHome, text: str) -> None:
    home.password_file.write_text(text)
    home.password_file.chmod(0o600)
    assert home.stored_password() is None
    assert len(home.password()) > 30


def test_password_readable_by_others_is_replaced(home: PrefectHome) -> None:
    before = home.password()
    home.password_file.chmod(0o644)
    assert home.stored_password() is None
    assert home.password() != before and home.password_file.stat().st_mode & 0o777 == 0o600


def test_symlink_in_place_of_the_password_file_is_not_written_through(home: PrefectHome, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("")
    home.password_file.symlink_to(tmp_path / "theirs")
    home.password()
    assert (tmp_path / "theirs").read_text() == "" and not home.password_file.is_symlink()


def test_user_password_is_used(home: PrefectHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER_PASSWORD, "admin:theirs")
    assert home.password() == "admin:theirs" and not home.password_file.exists()


def test_commands_find_the_password_of_the_local_server(running: PrefectHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", URL + "/")
    use_own_password()
    assert os.environ[PASSWORD] == running.stored_password()


@pytest.mark.parametrize("url", ["http://127.0.0.1:4200/api", "http://prefect.example/api", ""])
def test_password_is_sent_to_no_other_server(running: PrefectHome, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    use_own_password()
    assert PASSWORD not in os.environ


def test_explicit_password_is_kept(running: PrefectHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", URL)
    monkeypatch.setenv(PASSWORD, "admin:mine")
    use_own_password()
    assert os.environ[PASSWORD] == "admin:mine"


def test_treadle_deployments_have_no_foreign_part() -> None:
    from treadle.tasks.prefect.deployments import deployments
    from treadle.tasks.prefect.settings import FLOW_RUN_ENV

    for item in deployments():
        step = {STEP: {"directory": "/somewhere"}}
        assert untrusted_part(item.entrypoint, [step], {"env": dict(FLOW_RUN_ENV)}) is None


@pytest.mark.parametrize(
    ("entrypoint", "steps", "variables"),
    [
        (None, [{STEP: {"directory": "/x"}}], {}),
        ("treadle.cli.main.main", [{STEP: {"directory": "/x"}}], {}),
        ("flows/flywheel.py:stage", [{STEP: {"directory": "/x"}}], {}),
        (ENTRYPOINT, None, {}),
        (ENTRYPOINT, [], {}),
        (ENTRYPOINT, [{STEP: {"directory": "/x"}}] * 2, {}),
        (ENTRYPOINT, [{STEP: {"directory": "/x", "requires": "evil"}}], {}),
        (ENTRYPOINT, [{STEP: {"directory": "/x"}, "prefect.deployments.steps.pip_install_requirements": {}}], {}),
        (ENTRYPOINT, [{"prefect.deployments.steps.git_clone": {"repository": "x"}}], {}),
        (ENTRYPOINT, [{STEP: {"directory": "/x"}}], {"command": "sh"}),
        (ENTRYPOINT, [{STEP: {"directory": "/x"}}], {"working_dir": "/x"}),
        (ENTRYPOINT, [{STEP: {"directory": "/x"}}], {"env": {"PYTHONPATH": "/x"}}),
    ],
)
def test_other_deployments_have_a_foreign_part(entrypoint, steps, variables) -> None:
    assert untrusted_part(entrypoint, steps, variables) is not None
