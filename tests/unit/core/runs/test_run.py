"""A run keeps one config and reports what its instances have done."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import orjson
import pytest

from treadle.core.errors import RunError, StorageError
from treadle.core.journal.journal import Journal
from treadle.core.runs import locked_config
from treadle.core.runs.address import Address
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.records import AttemptRecord, AttemptState, StageRecord
from treadle.core.runs.run import Run, list_runs
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.store.locks import hold
from treadle.core.store.storage import LocalStorage


def test_run_is_created_once_and_opened_again(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r1", {"a": 1, "url": "x"}, {"a": 1}, "a = 1\n", seed=7)
    assert (tmp_path / "runs/r1/config.input.toml").read_text() == "a = 1\n"
    again = Run.open(tmp_path, "r1")
    assert again.info == run.info
    assert (again.info.seed, again.config()) == (7, {"a": 1, "url": "x"})
    assert again.info.packages["pyarrow"]
    with pytest.raises(RunError, match="run r1 already exists in"):
        Run.create(tmp_path, "r1", {}, {})
    assert list_runs(tmp_path) == ["r1"]


def test_run_being_created_by_another_process_is_left_alone(tmp_path: Path) -> None:
    with (
        hold(tmp_path / "runs/r1/locks/run.lock", "it"),
        pytest.raises(RunError, match="the creation of run r1 is being run by process .*; wait until it ends"),
    ):
        Run.create(tmp_path, "r1", {"a": 2}, {"a": 2})
    assert not (tmp_path / "runs/r1/config.json").exists()
    assert create_or_open_run(tmp_path, "r1", {"a": 1}, {"a": 1}).config() == {"a": 1}


def test_missing_run_error_lists_existing_runs(tmp_path: Path) -> None:
    Run.create(tmp_path, "r1", {}, {})
    with pytest.raises(RunError, match="there is no run r2 in .*; runs there: r1"):
        Run.open(tmp_path, "r2")


@pytest.mark.parametrize("run_id", ["", "..", "../r", "a/b", ".hidden", "-x", "a\n", "ü", "a" * 101, "a b", "r1\0"])
def test_hostile_run_id_is_refused(tmp_path: Path, run_id: str) -> None:
    for make in (lambda: Run.create(tmp_path, run_id, {}, {}), lambda: Run.open(tmp_path, run_id)):
        with pytest.raises(RunError, match="cannot be a run id"):
            make()
    assert list(tmp_path.iterdir()) == []


def test_different_semantic_config_is_refused_with_its_keys(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r1", {}, {"rollouts": {"seed": 1, "k": 2}, "x": (1, 2)})
    run.write_record(record_of("1/scores"))
    with pytest.raises(RunError, match=r"\(rollouts.seed: 1 -> 3; y: None -> 4\); choose a new run id"):
        create_or_open_run(tmp_path, "r1", {}, {"rollouts": {"seed": 3, "k": 2}, "x": (1, 2), "y": 4})


def test_added_table_is_shown_by_its_keys_that_have_a_value(tmp_path: Path) -> None:
    first, second = ({"path": name, "limit": None, "payload": []} for name in "ab")
    create_or_open_run(tmp_path, "r1", {}, {"sources": [first]}).write_record(record_of("1/scores"))
    with pytest.raises(RunError, match=r"configuration \(sources\[1\]: None -> {'path': 'b'}\); choose"):
        create_or_open_run(tmp_path, "r1", {}, {"sources": [first, second]})


def test_edited_code_is_named_without_its_digests(tmp_path: Path) -> None:
    tools = [{"tools": {"shop": {"code_sha256": digest}}, "code_sha256": "0"} for digest in ("12", "34")]
    create_or_open_run(tmp_path, "r1", {}, {"environment": tools[0]}).write_record(record_of("1/scores"))
    with pytest.raises(RunError, match=r"^the code of environment.tools.shop was edited since run r1 began; choose a"):
        create_or_open_run(tmp_path, "r1", {}, {"environment": tools[1]})


@pytest.mark.parametrize("made", ["nothing", "a failed attempt", "a journal", "a record", "a living attempt"])
def test_empty_run_accepts_another_config(tmp_path: Path, made: str) -> None:
    run = Run.create(tmp_path, "r1", {"a": 1}, {"a": 1}, "first", seed=1)
    address = Address(1, "scores")
    # The lock of a dead attempt remains, as does the folder of a journal that nothing was written into.
    with (
        hold(run.storage.directory(run.key(f"locks/{address}.lock")), "it") as lease,
        Journal(run.storage.directory(run.journal_key(address, "f"))) as j,
    ):
        if made != "nothing":
            state: AttemptState = "running" if made == "a living attempt" else "failed"
            run.write_attempt(attempt_of("1/scores").model_copy(update={"state": state}))
        if made == "a journal":
            j.append("owner", "unit", b"1")
        if made == "a record":
            run.write_record(record_of("1/scores"))
        if made != "a living attempt":
            lease.release()

        def resume() -> Run:
            return create_or_open_run(tmp_path, "r1", {"a": 2}, {"a": 2}, "second", seed=2)

        if made in ("nothing", "a failed attempt"):
            assert resume().info == Run.open(tmp_path, "r1").info
            again = Run.open(tmp_path, "r1")
            assert (again.info.semantic, again.info.seed, again.config()) == ({"a": 2}, 2, {"a": 2})
            assert again.info.created_at == run.info.created_at
        else:
            with pytest.raises(RunError, match="a: 1 -> 2"):
                resume()
            assert Run.open(tmp_path, "r1").info == run.info


def test_config_set_meanwhile_by_another_process_is_compared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.create(tmp_path, "r1", {}, {"a": 1})
    is_untouched = locked_config.is_untouched

    def overtaken(run: Run) -> bool:
        monkeypatch.setattr(locked_config, "is_untouched", is_untouched)
        untouched = is_untouched(run)
        create_or_open_run(tmp_path, "r1", {}, {"a": 3}).write_record(record_of("1/scores"))
        return untouched

    monkeypatch.setattr(locked_config, "is_untouched", overtaken)
    with pytest.raises(RunError, match=r"\(a: 3 -> 2\)"):
        create_or_open_run(tmp_path, "r1", {}, {"a": 2})
    assert Run.open(tmp_path, "r1").info.semantic == {"a": 3}


@pytest.mark.covers("service-25")
def test_accepted_changes_replace_the_configuration_unless_something_runs(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r1", {"a": 1}, {"a": 1}, "first", seed=1)
    run.write_record(record_of("1/scores"))

    def resume(*, allow_changes: bool) -> Run:
        given = {"a": 2}
        return create_or_open_run(tmp_path, "r1", given, given, "second", seed=2, allow_changes=allow_changes)

    with pytest.raises(RunError, match=r"\(a: 1 -> 2\).*--allow-changes"):
        resume(allow_changes=False)
    with hold(run.storage.directory(run.key(f"locks/{Address(1, 'scores')}.lock")), "it"):
        run.write_attempt(attempt_of("1/scores").model_copy(update={"state": "running", "number": 2}))
        with pytest.raises(RunError, match="in progress with other settings"):
            resume(allow_changes=True)
    changed = resume(allow_changes=True)
    assert (changed.info.semantic, changed.info.seed, changed.config()) == ({"a": 2}, 2, {"a": 2})
    assert changed.record(Address(1, "scores")) == run.record(Address(1, "scores")), "nothing is deleted"


def test_operational_differences_are_applied(tmp_path: Path) -> None:
    create_or_open_run(tmp_path, "r1", {"a": 1, "url": "x"}, {"a": 1}, "first")
    run = create_or_open_run(tmp_path, "r1", {"a": 1, "url": "y"}, {"a": 1}, "second")
    assert run.config() == {"a": 1, "url": "y"}
    assert orjson.loads((tmp_path / "runs/r1/config.json").read_bytes()) == {"a": 1, "url": "y"}
    assert (tmp_path / "runs/r1/config.input.toml").read_text() == "second"


def test_changed_key_without_a_file_keeps_the_user_file(tmp_path: Path) -> None:
    create_or_open_run(tmp_path, "r1", {"a": 1, "url": "x"}, {"a": 1}, "first")
    run = create_or_open_run(tmp_path, "r1", {"a": 1, "url": "y"}, {"a": 1})
    assert run.config() == {"a": 1, "url": "y"}
    assert (tmp_path / "runs/r1/config.input.toml").read_text() == "first"


def test_instances_without_an_attempt_are_absent(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r1", {}, {})
    (status,) = run.statuses([Address(1, "rollouts", "base")])
    assert (status.address, status.state, status.num_attempts) == ("1/rollouts@base", "absent", 0)
    assert run.statuses() == []


def test_damaged_record_is_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r1", {}, {})
    run.storage.put(run.key("records/1/scores.json"), b'{"format": 2, "stage": "scores"}')
    with pytest.raises(RunError, match=r"runs/r1/records/1/scores.json cannot be read \(address: Field required\)"):
        run.records()


@pytest.mark.parametrize("name", ["run.json", "records/1/scores.json", "attempts/1/scores/1/attempt.json"])
def test_file_with_another_format_is_refused_by_name(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path, "r1", {}, {})
    run.write_record(record_of("1/scores"))
    run.write_attempt(attempt_of("1/scores"))
    path = tmp_path / "runs/r1" / name
    later = orjson.loads(path.read_bytes())
    assert later["format"] == 2
    others = {f"format {other}": {**later, "format": other} for other in (1, 3)}
    others |= {"format 1": {"format": 1, "with": "other keys"}, "no format": {"with": "other keys"}}
    for has, content in others.items():
        path.write_bytes(orjson.dumps(content))
        with pytest.raises(RunError, match=f"runs/r1/{name} has {has}; this Treadle reads format 2: use"):
            Run.open(tmp_path, "r1").statuses()


@pytest.mark.parametrize("name", ["run.json", "records/1/scores.json", "attempts/1/scores/1/attempt.json"])
def test_file_with_unknown_keys_is_read(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path, "r1", {}, {})
    run.write_record(record_of("1/scores"))
    run.write_attempt(attempt_of("1/scores"))
    path = tmp_path / "runs/r1" / name
    data = orjson.loads(path.read_bytes())
    del data["digest"]
    path.write_bytes(orjson.dumps({**data, "outputs": later_outputs(data), "invented_later": 1}))
    (status,) = Run.open(tmp_path, "r1").statuses()
    assert (status.state, status.num_rows) == ("completed", {"scores": 3})


@pytest.mark.parametrize("name", ["run.json", "records/1/scores.json", "attempts/1/scores/1/attempt.json"])
def test_bit_flip_is_always_detected(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path, "r1", {"a": 1}, {"a": 1})
    run.write_record(record_of("1/scores"))
    run.write_attempt(attempt_of("1/scores"))
    path = tmp_path / "runs/r1" / name

    def read() -> list[Any]:
        found, address = Run.open(tmp_path, "r1"), Address(1, "scores")
        return [found.info, found.records(), found.attempts(address), found.config()]

    content, sound = path.read_bytes(), read()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        try:
            assert read() == sound, f"byte {at}"
        except RunError as error:
            assert "\n" not in str(error) and name in str(error)


def test_changed_record_is_reported_in_addition_to_artifacts(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r1", {}, {})
    run.write_record(record_of("1/scores").model_copy(update={"metrics": {"accuracy": 0.25}}))
    path = tmp_path / "runs/r1/records/1/scores.json"
    path.write_text(path.read_text().replace("0.25", "0.75"))
    with pytest.raises(RunError, match=r"runs/r1/records/1/scores.json has changed since it was written; restore it"):
        run.records()
    (problems,) = run.verify().values()
    assert "has changed since it was written" in problems[0]
    data = orjson.loads(path.read_bytes())
    del data["digest"]
    path.write_bytes(orjson.dumps(data))
    (record,) = run.records()
    assert record.metrics == {"accuracy": 0.75}


def later_outputs(data: dict[str, Any]) -> Any:
    return {kind: {**ref, "invented_later": 1} for kind, ref in data.get("outputs", {}).items()}


def record_of(address: str) -> StageRecord:
    scores = ArtifactRef(kind="scores", digest="0" * 16, num_rows=3, num_bytes=9)
    return StageRecord(
        address=address,
        stage="scores",
        version=1,
        fingerprint="f" * 64,
        settings={},
        inputs={},
        outputs={"scores": scores},
        telemetry={},
        metrics={},
        attempt=1,
        started_at="2026-01-01T00:00:00+00:00",
        finished_at="2026-01-01T00:00:01+00:00",
        versions={},
    )


def attempt_of(address: str) -> AttemptRecord:
    return AttemptRecord(
        address=address,
        number=1,
        state="completed",
        fingerprint="f" * 64,
        inputs={},
        forced=False,
        pid=1,
        host="h",
        token=1,
        started_at="2026-01-01T00:00:00+00:00",
    )


def test_root_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="there is a file where a folder is expected"):
        Run.create(tmp_path / "file", "r1", {}, {})


def test_object_is_replaced_only_if_it_matches_the_expected_version(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert storage.put_if("a/b", b"1", None)
    assert not storage.put_if("a/b", b"2", None)
    assert not storage.put_if("a/b", b"2", b"0")
    assert storage.put_if("a/b", b"2", b"1")
    assert storage.get("a/b") == b"2"
    assert list(storage.keys("a")) == ["a/b"]
    storage.delete("a")
    storage.delete("a")
    assert storage.get("a/b") is None


def test_leftovers_of_a_killed_deletion_are_deleted_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("a/b/c", b"1")
    with monkeypatch.context() as patch:
        patch.setattr("os.rmdir", None)
        with pytest.raises(TypeError):
            storage.delete("a/b")
    assert list(storage.keys("a")) == []
    storage.delete("a/b")
    assert list((tmp_path / "a").iterdir()) == []


def test_leftovers_of_a_killed_writer_are_deleted_but_not_those_of_a_live_one(tmp_path: Path) -> None:
    storage, folder = LocalStorage(tmp_path), tmp_path / "a"
    folder.mkdir()
    abandoned, written = (folder / f".tmp-{digit * 32}" for digit in "ab")
    for touch in (lambda: storage.put("a/x", b"1"), lambda: storage.delete("a/x"), lambda: storage.delete("a/absent")):
        abandoned.write_bytes(b"half")
        with written.open("wb") as living:
            fcntl.flock(living, fcntl.LOCK_EX)
            touch()
            assert [path.name for path in folder.glob(".tmp-*")] == [written.name]


def test_writer_with_a_deleted_temporary_file_creates_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def overtaken(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        for path in tmp_path.glob(".tmp-*"):
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    LocalStorage(tmp_path).put("x", b"1")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"1")]


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../x", "a\0b"])
def test_key_cannot_escape_the_root(tmp_path: Path, key: str) -> None:
    with pytest.raises(StorageError, match="is not a key inside of"):
        LocalStorage(tmp_path / "root").put(key, b"")
