"""Measure the intake of similar questions: CPU time of twice as many questions, compared with pairwise comparison.

    python -m benchmarks.runs.question_intake [--questions 3000] [--large 100000] [--only KIND ...] [--json]

Target: twice as many questions of one template cost at most 2.2 times the CPU time, whatever fills the template's
slots. The same holds for twice as many training questions against twice as many benchmark questions of the same
template. The whole stage then takes in `--large` questions of one template from a JSON Lines file, in a process of its
own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.parts.measuring import memory_kib
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.contamination import BenchmarkIndex
from treadle.datagen.questions.duplicates import DuplicateIndex
from treadle.datagen.questions.entry import QUESTIONS_STAGE
from treadle.datagen.questions.source_rows import with_digests
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.plain_duplicates import PlainIndex

AT_MOST = 2.2
SHORT = "What is the capital number {} of the country on the other side of the river?"
LONG = (
    "The map of the northern counties shows a road from the harbour over the hills to the house of {}. It was built by "
    "the county in the year after the great flood and passes the mill of {}, the bridge of {} and the tower of {} "
    "before it turns towards the sea and ends below the lighthouse. Is it true that the road is longer than the river "
    "that runs next to it, if both of them are measured by the same keeper on the same day?"
)


class IntakeQuestion(NamedTuple):
    """A question, its answer, and whether it is held out."""

    question: str
    answer: str
    heldout: bool = False


def word(number: int) -> str:
    """Return a made-up word that depends on the number."""
    chance = random.Random(number)
    pairs = chance.choice((3, 4, 5))
    return "".join(chance.choice("bcdfghklmnprstvw") + chance.choice("aeiou") for _ in range(pairs))


def yes_or_no(number: int) -> str:
    """Return one of two answers."""
    return ("yes", "no")[number % 2]


def letters(number: int) -> str:
    """Return 7 or 8 letters drawn at random, others for each number; hardly any two are near each other."""
    chance = random.Random(number)
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.choice((7, 8))))


def slots(number: int) -> list[str]:
    """Return one combination of ten words for each of four slots."""
    return [word(10 * slot + number // 10**slot % 10) for slot in range(4)]


def permuted(number: int) -> str:
    """Return a puzzle with the same words as all others, in its own order."""
    books = ["red", "blue", "green", "white", "black", "yellow", "brown", "grey"]
    random.Random(number).shuffle(books)
    told = " ".join(
        f"The {left} book stands to the left of the {right} book on the shelf."
        for left, right in zip(books, books[1:], strict=False)
    )
    return f"Eight books stand on a shelf, and all that is said of them is true. {told} Which book is the leftmost one?"


KINDS: dict[str, Callable[[int], IntakeQuestion]] = {
    "a number": lambda number: IntakeQuestion(SHORT.format(number), f"City {number}"),
    "a name": lambda number: IntakeQuestion(LONG.format(word(number).title(), "Ann", "Ben", "Cid"), yes_or_no(number)),
    "a word": lambda number: IntakeQuestion(
        LONG.format(word(number), "millers", "builders", "keepers"), yes_or_no(number)
    ),
    "two words of any letters": lambda number: IntakeQuestion(
        LONG.format(letters(2 * number), letters(2 * number + 1), "builders", "keepers"), yes_or_no(number)
    ),
    "combined names": lambda number: IntakeQuestion(LONG.format(*map(str.title, slots(number))), yes_or_no(number)),
    "combined words": lambda number: IntakeQuestion(LONG.format(*slots(number)), yes_or_no(number)),
    "an order": lambda number: IntakeQuestion(permuted(number), yes_or_no(number)),
    "another answer": lambda number: IntakeQuestion(LONG.format(*slots(0)), word(number), True),
    "nothing in common": lambda number: IntakeQuestion(
        " ".join(map(word, range(12 * number, 12 * number + 12))), yes_or_no(number)
    ),
}
"""Difference between the questions of a set -> function that makes a question."""


def cpu_of_duplicates(index: DuplicateIndex | PlainIndex, asked: list[IntakeQuestion]) -> float:
    """Return CPU seconds to look all questions up and keep those that are new."""
    started = time.process_time()
    for number, one in enumerate(asked):
        index.add(str(number), one.question, [one.answer], heldout=one.heldout)
    return time.process_time() - started


def cpu_of_benchmark(num_questions: int) -> float:
    """Return CPU seconds to compare training questions with as many benchmark questions of the same template."""
    questions = [LONG.format(*(word(4 * number + slot) for slot in range(4))) for number in range(2 * num_questions)]
    started = time.process_time()
    index = BenchmarkIndex()
    for number, question in enumerate(questions[:num_questions]):
        index.add("benchmark", number, question)
    for question in questions[num_questions:]:
        index.find(question)
    return time.process_time() - started


def doubling(measured: Callable[[int], float], num_questions: int) -> tuple[float, float]:
    """Return CPU seconds for `2 * num_questions` questions, and their ratio to those for `num_questions`.

    Both times are the minimum of three interleaved measurements, because other processes slow down single ones.
    """
    rounds = [(measured(num_questions), measured(2 * num_questions)) for _ in range(3)]
    once, twice = map(min, zip(*rounds, strict=True))
    return twice, twice / once


def take_in(folder: str, num_questions: int) -> tuple[float, float]:
    """Return CPU seconds of the whole stage, and the peak growth of memory in MiB."""
    path = Path(folder) / "questions.jsonl"
    with path.open("w") as file:
        for number in range(num_questions):
            file.write(json.dumps({"question": SHORT.format(number), "answer": f"City {number}"}) + "\n")
    settings = with_digests(QuestionsSettings(sources=(SourceSettings(path=path, domain="qa"),)))
    run = Run.create(Path(folder), "benchmark", {}, {})
    # Warm up, so that one-time allocations do not count.
    DuplicateIndex()
    before = memory_kib("VmRSS")
    started = time.process_time()
    execute(Instance(address=Address(1, "questions"), stage=QUESTIONS_STAGE, settings=settings), run)
    return time.process_time() - started, (memory_kib("VmHWM") - before) / 1024


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--questions", type=int, default=3_000, help="questions of each set; twice as many are next to it"
    )
    parser.add_argument("--large", type=int, default=100_000, help="questions of the whole stage")
    parser.add_argument("--only", nargs="+", choices=KINDS, help="measure sets of these kinds, and nothing else")
    add_json_option(parser)
    options = parser.parse_args()
    figures = []
    # Warm up before the first measurement.
    DuplicateIndex().add("", "", [])
    for name in options.only or KINDS:
        asked = [KINDS[name](number) for number in range(2 * options.questions)]
        cpu, ratio = doubling(
            lambda count, asked=asked: cpu_of_duplicates(DuplicateIndex(), asked[:count]), options.questions
        )
        figures += [
            Figure(name=f"apart by {name}: CPU of twice as many", value=ratio, at_most=AT_MOST),
            Figure(name=f"apart by {name}: CPU per question", value=1000 * cpu / len(asked), unit="ms"),
        ]
    if options.only:
        publish(figures, options.json)
        return
    cpu, ratio = doubling(cpu_of_benchmark, options.questions)
    figures += [
        Figure(name="a benchmark of the template: CPU of twice as many", value=ratio, at_most=AT_MOST),
        Figure(name="a benchmark of the template: CPU per question", value=500 * cpu / options.questions, unit="ms"),
    ]
    asked = [KINDS["a number"](number) for number in range(options.questions // 2)]
    plain, ours = (cpu_of_duplicates(index, asked) for index in (PlainIndex(0.9), DuplicateIndex()))
    figures.append(Figure(name=f"comparing {len(asked):,} one by one: CPU next to it", value=plain / ours))
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        cpu, mib = pool.submit(take_in, folder, options.large).result()
    figures += [
        Figure(name=f"stage with {options.large:,} questions: CPU", value=cpu, unit="s"),
        Figure(name="stage: CPU per question", value=1000 * cpu / options.large, unit="ms"),
        Figure(name="stage: memory per question", value=1024 * mib / options.large, unit="KiB"),
    ]
    publish(figures, options.json)


if __name__ == "__main__":
    main()
