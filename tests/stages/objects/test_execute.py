"""Stage instances on an object root: the tests of the local one again, and a second machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs.counting_stage import (
    CALLS,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)
from support.servers.object_machines import ADDRESS, execute_interrupted, on_machine
from unit.core.runs.test_attempts import (  # noqa: F401 - the same tests, with the `run` of this file
    test_attempt_killed_after_its_record_is_cleaned_up,
    test_clock_set_back_changes_nothing,
    test_failure_after_the_record_leaves_the_instance_completed,
    test_failure_leaves_no_record_and_the_next_attempt_continues,
    test_force_ignores_leftovers_of_an_unforced_attempt,
    test_forcing_again_resumes_an_interrupted_forced_attempt,
    test_interrupt_is_recorded_and_reraised,
    test_killed_attempt_shows_as_crashed_and_is_resumed,
    test_stage_bug_prints_one_line_and_logs_a_traceback,
    test_stage_logs_go_to_the_attempt,
)
from unit.core.runs.test_execute import (  # noqa: F401 - these as well
    test_changed_input_reruns_it_and_an_equal_one_does_not,
    test_changed_setting_reruns_it,
    test_concurrent_attempts_are_refused,
    test_finished_instance_is_not_rerun,
    test_force_starts_from_scratch,
    test_lost_artifact_is_rebuilt,
    test_missing_input_names_what_to_run_first,
    test_stage_without_output_fails,
    test_telemetry_is_stored_with_the_attempt_and_not_in_the_digest,
)

from treadle.core.errors import RunError
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run, list_runs


@pytest.fixture
def run(object_root: str) -> Run:
    return Run.create(object_root, "r1", {}, {})


def test_run_is_created_once_and_found_from_every_machine(run: Run, object_root: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"run r1 already exists in {object_root}; resume it"):
        Run.create(object_root, "r1", {}, {})
    with pytest.raises(RunError, match="there is no run r2 in .*; runs there: r1"):
        Run.open(object_root, "r2")
    assert list_runs(object_root) == ["r1"]
    execute(counting(), run)
    other = on_machine(object_root, tmp_path)
    assert numbers_of(other) == [0, 1, 2]
    assert execute(counting(), other).reused
    assert other.statuses() == run.statuses()
    assert other.verify() == {key: [] for key in run.verify()}


def test_another_machine_resumes_from_uploaded_work(run: Run, object_root: str, tmp_path: Path) -> None:
    execute_interrupted(run, 2)
    other = on_machine(object_root, tmp_path)
    status = other.status(ADDRESS)
    assert (status.state, status.num_finished) == ("interrupted", 2)
    execute(counting(), other)
    assert CALLS == [2]
    assert not list(other.storage.keys("runs/r1/journal"))


def test_force_on_another_machine_reuses_nothing(run: Run, object_root: str, tmp_path: Path) -> None:
    execute_interrupted(run, 2)
    other = on_machine(object_root, tmp_path)
    execute_interrupted(other, 0, force=True)
    execute(counting(), run)
    assert CALLS == [0, 1, 2]
