"""Programming tasks of the sample world: in ColBench's format, and not to be solved without the human's details."""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from treadle.core.errors import ConfigError, StorageError
from treadle.demo.programs.families import FAMILIES, NUMBERS, Details, Family, read_program, read_request
from treadle.demo.programs.tasks import NUM_CALLS, make_tasks, program_calls, write_programs
from treadle.formats.colbench.tasks import task_of

Task = dict[str, Any]


@functools.cache
def function(family: str, number: int, option: str) -> Callable[[Any], object]:
    """Return a program of the world as a function."""
    namespace: dict[str, Any] = {}
    exec(FAMILIES[family].program("boats", number, option), namespace)
    made: Callable[[Any], object] = namespace[f"{family}_boats"]
    return made


def argument(call: str) -> Any:
    """Return the argument of a test call, which must be a call of one constant."""
    (node,) = ast.parse(call, mode="eval").body.args  # type: ignore[attr-defined]
    return ast.literal_eval(node)


@pytest.fixture(scope="module")
def tasks() -> dict[str, list[Task]]:
    return {"train": list(make_tasks("train", 400, 3)), "heldout": list(make_tasks("heldout", 200, 3))}


def test_task_has_the_fields_of_colbench(tasks: dict[str, list[Task]]) -> None:
    for task in tasks["train"] + tasks["heldout"]:
        assert set(task) == {"problem_description", "ground_truth", "test_cases"}
        signature = task["ground_truth"].partition(":")[0]
        assert signature in task["problem_description"]
        assert len(task["test_cases"]) == NUM_CALLS
        name = signature.removeprefix("def ").partition("(")[0]
        assert all(call.startswith(f"{name}(") for call in task["test_cases"].values())


def test_tasks_are_read_as_those_of_colbench(tasks: dict[str, list[Task]]) -> None:
    for task in tasks["heldout"]:
        read = task_of(task)
        assert (read.description, read.reference) == (task["problem_description"], task["ground_truth"])
        assert read.tests == task["test_cases"] and not read.extra


def test_references_run_on_their_calls_and_return_something(tasks: dict[str, list[Task]]) -> None:
    for task in tasks["train"] + tasks["heldout"]:
        namespace: dict[str, Any] = {}
        exec(task["ground_truth"], namespace)
        assert None not in [eval(call, namespace) for call in task["test_cases"].values()]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_calls_distinguish_a_program_from_those_of_all_other_details(family: Family) -> None:
    for number in NUMBERS[::11]:
        for place, option in enumerate(family.options):
            calls = program_calls(Details(family, "boats", number, option), 1_000_003 * number + place)
            arguments = [argument(call) for call in calls.values()]

            def results(number: int, option: str, arguments: list[Any] = arguments) -> list[object]:
                return [function(family.name, number, option)(one) for one in arguments]

            alike = [
                (other, choice)
                for other in NUMBERS
                for choice in family.options
                if results(other, choice) == results(number, option)
            ]
            assert alike == [(number, option)]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_wrong_option_with_the_right_number_can_pass_some_calls_but_never_all(family: Family) -> None:
    shares = []
    for number in NUMBERS[::7]:
        for option in family.options:
            calls = program_calls(Details(family, "boats", number, option), number)
            given = [argument(call) for call in calls.values()]
            right = [function(family.name, number, option)(one) for one in given]
            for other in set(family.options) - {option}:
                passed = [function(family.name, number, other)(one) for one in given]
                shares.append(sum(map(lambda a, b: a == b, passed, right)) / NUM_CALLS)
    assert max(shares) < 1 and sum(shares) / len(shares) < 0.6


def test_request_names_no_hidden_detail_and_occurs_with_different_programs() -> None:
    programs: dict[str, set[str]] = defaultdict(set)
    for task in make_tasks("train", 1_000, 3):
        description = task["problem_description"]
        programs[description].add(task["ground_truth"])
        asked = read_request(description)
        assert asked is not None and not set(asked[0].options) & set(description.replace(",", " ").split())
        assert not any(letter.isdigit() for letter in description)
    several = [len(hidden) > 1 for hidden in programs.values()]
    assert sum(several) > 0.9 * len(several)


def test_held_out_things_and_pairs_of_details_are_not_in_the_training_split(tasks: dict[str, list[Task]]) -> None:
    read = {split: [read_program(task["ground_truth"]) for task in rows] for split, rows in tasks.items()}
    things, details = ({split: {get(one) for one in rows if one} for split, rows in read.items()} for get in (
        lambda one: one.thing, lambda one: (one.family.name, one.number, one.option)))  # fmt: skip
    assert not things["train"] & things["heldout"] and not details["train"] & details["heldout"]
    assert len(things["heldout"]) == 8


def test_families_and_options_are_balanced(tasks: dict[str, list[Task]]) -> None:
    for rows in tasks.values():
        read = [one for task in rows if (one := read_program(task["ground_truth"]))]
        assert set(Counter(one.family.name for one in read).values()) == {len(rows) // len(FAMILIES)}
        for family in FAMILIES.values():
            drawn = Counter(one.option for one in read if one.family is family)
            assert min(drawn[option] for option in family.options) > 0.15 * drawn.total()


def test_tasks_are_different_and_of_their_seed(tasks: dict[str, list[Task]]) -> None:
    for split, rows in tasks.items():
        assert len({task["ground_truth"] for task in rows}) == len(rows)
        assert list(make_tasks(split, 20, 3)) == rows[:20]  # type: ignore[arg-type]
        assert list(make_tasks(split, 20, 4)) != rows[:20]  # type: ignore[arg-type]


def test_largest_worlds_can_be_made() -> None:
    assert [len(list(make_tasks(split, 1_000, 0))) for split in ("train", "heldout")] == [1_000, 1_000]


def test_written_questions_have_equal_bytes_for_equal_parameters(tmp_path: Path) -> None:
    first, second = (write_programs(tmp_path / name, taught=20, train=10, heldout=5, seed=5) for name in ("a", "b"))
    assert first.questions.read_bytes() == second.questions.read_bytes()
    assert list((tmp_path / "a").iterdir()) == [first.questions]
    rows = [orjson.loads(line) for line in first.questions.read_bytes().splitlines()]
    assert [row["split"] for row in rows] == ["train"] * 30 + ["heldout"] * 5
    assert Counter(row["dataset"] for row in rows) == first.sizes
    for row, task in zip(rows, [*make_tasks("train", 30, 5), *make_tasks("heldout", 5, 5)], strict=True):
        assert (row["question"], row["reference"]) == (task["problem_description"], task["ground_truth"])
        assert row["tests"] == task["test_cases"]


def test_wrong_sizes_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 to 1,000 tasks of a split, not 1001"):
        write_programs(tmp_path, taught=1_000, train=1, heldout=1)
    with pytest.raises(ConfigError, match="not 0"):
        write_programs(tmp_path, taught=1, train=1, heldout=0)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        write_programs(tmp_path / "file", taught=1, train=1, heldout=1)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_programs_are_read_back(family: Family) -> None:
    for option in family.options:
        details = Details(family, "boats", 47, option)
        assert read_program(f"Some text.\n{details.program}\nMore.") == details
    assert read_program(family.signature("boats") + ":\n    return 47") is None
    assert read_program("def other_boats(xs):\n    return max(xs) + 47") is None
    assert read_request("I need def other_boats(xs), please.") is None
