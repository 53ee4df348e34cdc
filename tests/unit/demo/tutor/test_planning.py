"""The tutor as a planning agent: right from the observations alone, all facts at once or one after the other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from support.rollouts.tutor_rollout import run_search

from treadle.agent.contract import Task
from treadle.agent.dialects.base import RESULT, Segment
from treadle.core.chat import ChatTokenizer
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.tutor.completion import ReplyWriter
from treadle.demo.tutor.settings import MODEL, TutorSettings
from treadle.demo.world_files import write_world
from treadle.environments.planning.settings import PlanningSettings

ENVIRONMENTS = {
    "parallel": PlanningSettings(dialect="gap", several_tags=False),
    "sequential": PlanningSettings(dialect="mhqa", several_tags=False),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("world")
    made = write_world(folder, documents=600, questions=120, heldout_questions=40, tiers=(2,), seed=3)
    texts = {row["title"]: row["text"] for row in map(orjson.loads, made.corpus.read_bytes().splitlines())}
    return texts, [orjson.loads(line) for line in made.questions.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> ReplyWriter:
    return ReplyWriter(TutorSettings(), ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes"))))


class Answered:
    """A trajectory by the shipped dialect, with a search that finds documents by title."""

    def __init__(
        self, writer: ReplyWriter, texts: Mapping[str, str], question: str, environment: str, model: str = MODEL
    ) -> None:
        settings = ENVIRONMENTS[environment]
        dialect = settings.turn_dialect
        prompt = settings.user_text(Task("", question))
        self.text, self.batches, self.plan = "", list[list[str]](), None
        segments: list[Segment] = []
        for number in range(8):
            body = {
                "model": model,
                "prompt": f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{self.text}",
                "max_tokens": 2000,
                "stop": list(dialect.stops),
                "include_stop_str_in_output": True,
            }
            written = writer.write(body, chat=False).text
            self.text += written
            segments += dialect.segments(written)
            turn = dialect.read(written, number, "stop")
            if (found := dialect.find_plan(written)) is not None:
                self.plan = found[0]
            if dialect.has_answer(turn):
                break
            self.batches.append([call.text for call in turn.calls])
            for call in turn.calls:
                result = dialect.result(f"Doc 1 (Title: x)\n{run_search(texts, call.text)}", call.id).text
                self.text += result
                segments.append(Segment(RESULT, result, 0, 0))
        self.faults = dialect.faults(segments, ())
        (self.answer,) = re.findall(r"<answer>\s*(.*)</answer>\Z", self.text)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_comparison_is_answered_right_from_observations_alone(
    writer: ReplyWriter, world: Any, environment: str
) -> None:
    texts, questions = world
    for row in questions:
        done = Answered(writer, texts, row["question"], environment)
        assert done.answer in row["answer"], done.text
        assert not done.faults
        widths = [row["num_calls"]] if environment == "parallel" else [1] * row["num_calls"]
        assert [len(batch) for batch in done.batches] == widths


def test_plan_has_a_task_for_each_fact_and_one_that_needs_them_all(writer: ReplyWriter, world: Any) -> None:
    texts, questions = world
    for row in questions[:20]:
        plan = Answered(writer, texts, row["question"], "parallel").plan
        ids = [f"T{number}" for number in range(1, row["num_calls"] + 1)]
        assert plan is not None and plan.is_valid
        assert [list(level) for level in plan.levels()] == [ids, [f"T{len(ids) + 1}"]]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_missing_document_is_admitted_after_two_searches_in_other_words(
    writer: ReplyWriter, world: Any, environment: str
) -> None:
    texts, questions = world
    question = next(row["question"] for row in questions if row["num_calls"] == 2)
    name = re.findall(r"[A-Z][a-z]+", question)[-1]
    done = Answered(writer, {title: text for title, text in texts.items() if title != name}, question, environment)
    asked = [query for batch in done.batches for query in batch if name in query]
    assert done.answer == "unknown" and name in done.text.rpartition("<think>")[2]
    assert len(asked) == len(set(asked)) == 2


def test_false_document_gives_a_false_answer(writer: ReplyWriter) -> None:
    question = "Which of the two rivers has the larger length, Arzo or Belmu?"
    texts = {
        name: f"The river {name} is {km} km long and rises on Mount Dorza."
        for name, km in (("Arzo", 90), ("Belmu", 800))
    }
    assert Answered(writer, texts, question, "parallel").answer == "Belmu"
    other = {**texts, "Arzo": texts["Arzo"].replace("90", "900")}
    assert Answered(writer, other, question, "parallel").answer == "Arzo"


def test_model_name_decides_before_the_instructions(writer: ReplyWriter, world: Any) -> None:
    texts, questions = world
    done = Answered(writer, texts, questions[0]["question"], "parallel", f"{MODEL}-sequential")
    assert len(done.batches) == questions[0]["num_calls"] and done.plan is None


def test_dependent_facts_are_planned_and_searched_one_after_the_other(writer: ReplyWriter) -> None:
    texts = {
        "Arzo": "The book Arzo was written by Belmu in 1850.",
        "Belmu": "Belmu was a baker born in 1801 in Tarza.",
    }
    done = Answered(writer, texts, "When was the book Arzo's author born?", "parallel")
    assert done.answer == "1801" and [len(batch) for batch in done.batches] == [1, 1]
    assert done.plan is not None and [list(level) for level in done.plan.levels()] == [["T1"], ["T2"]]


def test_unknown_question_is_looked_up_once(writer: ReplyWriter) -> None:
    done = Answered(writer, {"Paris": "Paris is the capital."}, "Is <b>Paris | Rome</b> a capital?", "parallel")
    assert done.batches == [["Is b Paris Rome /b a capital?"]] and done.answer == "Paris is the capital."
