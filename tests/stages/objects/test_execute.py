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
from support.servers.object_machines import ADDRESS, execute_cut_off, on_machine
from unit.core.runs.test_attempts import (  # noqa: F401 - the same tests, with the `run` of this file
    test_a_bug_in_a_stage_becomes_one_line_and_a_traceback_in_the_log,
    test_a_clock_that_is_set_back_changes_nothing,
    test_a_failure_behind_the_record_leaves_the_instance_completed,
    test_a_failure_leaves_no_record_and_the_next_attempt_continues,
    test_a_killed_attempt_shows_as_crashed_and_is_continued,
    test_an_attempt_killed_after_its_record_is_tidied_up,
    test_an_interrupt_is_recorded_and_passed_on,
    test_force_does_not_take_up_what_an_unforced_attempt_left,
    test_forcing_again_continues_a_forced_attempt_that_was_cut_off,
    test_stage_logs_go_to_the_attempt,
)
from unit.core.runs.test_execute import (  # noqa: F401 - these as well
    test_a_changed_input_runs_it_again_and_an_equal_one_does_not,
    test_a_changed_setting_runs_it_again,
    test_a_finished_instance_is_not_run_again,
    test_a_lost_artifact_is_made_again,
    test_a_missing_input_names_what_to_run_first,
    test_a_stage_that_makes_nothing_fails,
    test_force_starts_from_nothing,
    test_telemetry_lies_beside_the_attempt_and_not_in_the_digest,
    test_two_at_once_are_refused,
)

from treadle.core.errors import RunError
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run, list_runs


@pytest.fixture
def run(object_root: str) -> Run:
    return Run.create(object_root, "r1", {}, {})


def test_a_run_is_made_once_and_found_from_every_machine(run: Run, object_root: str, tmp_path: Path) -> None:
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


def test_another_machine_goes_on_with_what_was_sent_up(run: Run, object_root: str, tmp_path: Path) -> None:
    execute_cut_off(run, 2)
    other = on_machine(object_root, tmp_path)
    status = other.status(ADDRESS)
    assert (status.state, status.num_finished) == ("interrupted", 2)
    execute(counting(), other)
    assert CALLS == [2]
    assert not list(other.storage.keys("runs/r1/journal"))


def test_force_on_another_machine_takes_up_nothing(run: Run, object_root: str, tmp_path: Path) -> None:
    execute_cut_off(run, 2)
    other = on_machine(object_root, tmp_path)
    execute_cut_off(other, 0, force=True)
    execute(counting(), run)
    assert CALLS == [0, 1, 2]
