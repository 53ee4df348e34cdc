"""Generate programming tasks in the format of ColBench, and write them as questions of a run.

A task is a pure function of (seed, split, index). The details that a request leaves open are drawn independently of it,
so the same request occurs with different programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError
from treadle.demo.names import mix
from treadle.demo.programs.families import FAMILIES, NUMBERS, THINGS, Details
from treadle.demo.world import Split
from treadle.demo.world_files import write_questions

TAUGHT, TRAIN, HELDOUT = "programs-taught", "programs-train", "programs-heldout"
"""Data sets: tasks of a tutor's dialogues, other tasks to train on, and held-out tasks for evaluation."""
NUM_CALLS = 10
"""Number of test calls of a task."""

_HELDOUT_THINGS = THINGS[4::5]
_TRAIN_THINGS = tuple(thing for thing in THINGS if thing not in _HELDOUT_THINGS)
_HELDOUT_EVERY = 4
_MAX_TASKS = 1_000


@dataclass(frozen=True, slots=True)
class ProgramsFile:
    """Written questions.

    Attributes:
        questions: JSON Lines file with the fields `question`, `reference`, `tests`, `split` and `dataset`.
        sizes: Data set -> its number of tasks.
    """

    questions: Path
    sizes: Mapping[str, int]


def is_heldout(details: Details) -> bool:
    """Return whether the pair of hidden details belongs to the held-out split."""
    place = details.number + details.family.options.index(details.option)
    return place % _HELDOUT_EVERY == _HELDOUT_EVERY - 1


def make_tasks(split: Split, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield different tasks: {problem_description, ground_truth, test_cases}; families take turns.

    Raises ConfigError for more than 1,000 tasks.
    """
    if not 1 <= count <= _MAX_TASKS:
        raise ConfigError(f"a world of programs has 1 to {_MAX_TASKS:,} tasks of a split, not {count}")
    seen: set[str] = set()
    index = 0
    while len(seen) < count:
        bits = mix(seed, index, _SALTS[split])
        index += 1
        details = _draw(split, len(seen), bits)
        if is_heldout(details) != (split == "heldout") or details.program in seen:
            continue
        seen.add(details.program)
        yield {
            "problem_description": details.family.request(details.thing),
            "ground_truth": details.program,
            "test_cases": program_calls(details, bits),
        }


def program_calls(details: Details, bits: int) -> dict[str, str]:
    """Return ten calls, by name, that distinguish the program from those with another number or option."""
    name = f"{details.family.name}_{details.thing}"
    arguments = _ARGUMENTS[details.family.name](details.number, bits)
    return {f"test_{place}": f"{name}({argument!r})" for place, argument in enumerate(arguments, 1)}


def write_programs(folder: Path, *, taught: int, train: int, heldout: int, seed: int = 0) -> ProgramsFile:
    """Write `questions.jsonl`, with the payload of the environment `colbench/backend`.

    Equal parameters give equal bytes.

    Args:
        folder: where to write; created if missing. A file of earlier questions there is replaced.
        taught: number of tasks whose dialogues a tutor shows, in the data set `programs-taught`.
        train: number of other tasks to train on, in `programs-train`; with the former at most 1,000.
        heldout: number of held-out tasks for evaluation, in `programs-heldout`, at most 1,000; neither their things
            nor their pairs of hidden details occur in the other tasks.
        seed: selects the tasks.

    Raises:
        ConfigError: a number is out of range.
        StorageError: the folder cannot be written.
    """
    for_training = list(make_tasks("train", taught + train, seed))
    rows = [
        *(_question(task, "train", TAUGHT) for task in for_training[:taught]),
        *(_question(task, "train", TRAIN) for task in for_training[taught:]),
        *(_question(task, "heldout", HELDOUT) for task in make_tasks("heldout", heldout, seed)),
    ]
    return ProgramsFile(
        write_questions(folder, rows, "programming tasks"), {TAUGHT: taught, TRAIN: train, HELDOUT: heldout}
    )


def _question(task: Mapping[str, Any], split: Split, dataset: str) -> dict[str, Any]:
    return {
        "question": task["problem_description"],
        "reference": task["ground_truth"],
        "tests": task["test_cases"],
        "split": split,
        "dataset": dataset,
    }


_SALTS: Mapping[Split, int] = {"train": 301, "heldout": 302}


def _draw(split: Split, place: int, bits: int) -> Details:
    """Return the details of a task; `place`, its number in the split, selects the family, so families alternate."""
    family = tuple(FAMILIES.values())[place % len(FAMILIES)]
    things = _HELDOUT_THINGS if split == "heldout" else _TRAIN_THINGS
    return Details(
        family,
        things[bits % len(things)],
        NUMBERS[(bits >> 16) % len(NUMBERS)],
        family.options[(bits >> 40) % len(family.options)],
    )


def _numbers(bits: int, salt: int, count: int) -> list[int]:
    """Return different numbers from 1 to 99 in pseudo-random order."""
    found: dict[int, None] = {}
    draw = 0
    while len(found) < count:
        found[1 + mix(bits, draw, salt) % 99] = None
        draw += 1
    return list(found)


def _lists(number: int, bits: int) -> list[object]:
    """Return lists of different numbers, so that max, min and sum differ; two lists have less than three numbers."""
    return [[number], _numbers(bits, 2, 2), *(_numbers(bits, salt, 3 + salt % 3) for salt in range(3, NUM_CALLS + 1))]


def _lists_around(number: int, bits: int) -> list[object]:
    """Return lists with different numbers of values above, below and at a limit."""
    around = [
        [number - 1, number, number, number + 1, number + 1, number + 1],
        [number - 1],
        [number],
        [number + 1],
        [number - 2, number - 2, number + 2],
    ]
    return [*around, *(_numbers(bits, salt, 3 + salt % 3) for salt in range(len(around), NUM_CALLS))]


def _amounts(number: int, bits: int) -> list[object]:
    """Return different amounts, as arguments of test calls."""
    return list(_numbers(bits, 1, NUM_CALLS))


def _words(number: int, bits: int) -> list[object]:
    """Return words that are shorter than any width that a program may have, as arguments of test calls."""
    return [THINGS[mix(bits, place, 1) % len(THINGS)] for place in range(NUM_CALLS)]


def _texts(number: int, bits: int) -> list[object]:
    """Return texts in lower case and in capitals, as arguments of test calls."""
    words = [THINGS[mix(bits, place, 1) % len(THINGS)] for place in range(2 * NUM_CALLS)]
    texts = [f"{first} and {second}" for first, second in zip(words[::2], words[1::2], strict=True)]
    return [text.swapcase() if place % 2 else text for place, text in enumerate(texts)]


_ARGUMENTS: Mapping[str, Callable[[int, int], list[object]]] = {
    "score": _lists,
    "check": _lists_around,
    "code": _amounts,
    "column": _words,
    "label": _texts,
}
