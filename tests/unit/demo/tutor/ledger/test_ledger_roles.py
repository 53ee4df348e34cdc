"""The tutor's roles around the ledger, each from the prompt that it really gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from treadle.core.chat import ChatTokenizer
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.tutor.completion import ReplyWriter
from treadle.demo.tutor.ledger.cases import CaseStep
from treadle.demo.tutor.ledger.desk import Desk, read_records
from treadle.demo.tutor.ledger.errands import Errand, read_errands
from treadle.demo.tutor.ledger.judging import step_labels
from treadle.demo.tutor.ledger.lessons import SITUATIONS, STRATEGIES, WARNINGS
from treadle.demo.tutor.settings import MODEL, TutorSettings
from treadle.environments.ledger.assignment import SUBMIT, TEXTS, Assignment
from treadle.environments.ledger.book import Book, CallError

NUM_TASKS = 30


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module")
def strong(tokenizer: ChatTokenizer) -> ReplyWriter:
    return ReplyWriter(TutorSettings(), tokenizer)


@pytest.fixture(scope="module")
def noisy(tokenizer: ChatTokenizer) -> ReplyWriter:
    return ReplyWriter(TutorSettings(persona="noisy"), tokenizer)


def asked(writer: ReplyWriter, role: str, messages: Sequence[dict[str, str]], seed: int = 0) -> str:
    """Return the reply of a role; an empty one is guessed from the prompt."""
    model = f"{MODEL}-{role}" if role else MODEL
    body = {"model": model, "messages": list(messages), "max_tokens": 4_000, "seed": seed}
    return writer.write(body, chat=True).text


class Played:
    """An episode on the book of a task."""

    def __init__(self, writer: ReplyWriter, seed: int, text: str = "", role: str = "clerk") -> None:
        self.assignment, self.book, self.answer = Assignment.make(seed), Book.make(seed), None
        self.steps: list[CaseStep] = []
        messages = [{"role": "system", "content": "You keep a ledger."}]
        messages += [{"role": "user", "content": text or self.assignment.text}]
        while len(self.steps) < 20 and self.answer is None:
            turn = asked(writer, role, messages, seed * 100 + len(self.steps))
            reply = self._carried_out(json.loads(turn))
            self.steps.append(CaseStep(turn, reply))
            messages += [{"role": "assistant", "content": turn}, {"role": "user", "content": reply}]

    def _carried_out(self, call: dict[str, Any]) -> str:
        name = call.pop("call")
        if name == SUBMIT:
            self.answer = call["answer"]
            return '{"submitted": true}'
        try:
            return json.dumps(self.book.call(name, call))
        except CallError as error:
            return json.dumps({"error": str(error)})

    @property
    def score(self) -> float:
        return self.assignment.score(self.book, self.answer)

    @property
    def json_steps(self) -> list[dict[str, str]]:
        return [{"action": step.action, "observation": step.observation} for step in self.steps]


def case_messages(case: dict[str, Any]) -> list[dict[str, str]]:
    return [{"role": "system", "content": "The message below is JSON."}, {"role": "user", "content": json.dumps(case)}]


@pytest.mark.parametrize("role", ["clerk", ""], ids=["by name", "by prompt"])
def test_clerk_solves_every_task_with_as_few_calls_as_its_solution(strong: ReplyWriter, role: str) -> None:
    for seed in range(NUM_TASKS):
        played = Played(strong, seed, role=role)
        assert played.score == 1.0 and len(played.steps) == len(played.assignment.solution), played.steps


def test_noisy_clerk_errs_and_a_lesson_makes_errors_rarer(noisy: ReplyWriter) -> None:
    def num_solved(lesson: bool) -> int:
        solved = 0
        for seed in range(NUM_TASKS):
            assignment = Assignment.make(seed)
            assert assignment.kind is not None
            hint = f"\n\n{SITUATIONS[assignment.kind]}: {STRATEGIES[assignment.kind]}" if lesson else ""
            solved += Played(noisy, seed, assignment.text + hint).score == 1.0
        return solved

    without, with_lesson = num_solved(False), num_solved(True)
    assert NUM_TASKS // 2 < without < with_lesson < NUM_TASKS


def test_clerk_hands_in_a_task_that_is_impossible(strong: ReplyWriter) -> None:
    played = Played(strong, 1, TEXTS["sum_open"].format(owner="Zoe"))
    assert [json.loads(step.action)["call"] for step in played.steps] == ["find_account", "submit"]


def test_explorer_looks_at_accounts_and_changes_nothing(strong: ReplyWriter) -> None:
    played = Played(strong, 7, "Explore this environment. There is no task to solve.", role="explorer")
    assert played.book == Book.make(7)
    desk = Desk.read(*(step.observation for step in played.steps))
    assert len(desk.accounts) == len(desk.orders) == 3 and played.answer == 0


def written(writer: ReplyWriter, seed: int, known: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the tasks that are written from an exploration of the book of a seed."""
    played = Played(writer, seed, "Explore this environment. There is no task to solve.", role="explorer")
    case = {"environment": {}, "known": list(known), "score": None, "steps": played.json_steps}
    text = f"What the agent did is data.\n{json.dumps(case)}"
    return json.loads(asked(writer, "task-writer", [{"role": "user", "content": text}]))


def is_solved_by_reference(seed: int, task: dict[str, Any]) -> bool:
    """Return whether the reference does on the book of a seed what the text of a task asks for."""
    book, (errand,) = Book.make(seed), read_errands(task["query"])
    account = next(one for one in book.accounts.values() if one.holder == errand.owner)
    open_before, balance = sorted(order.amount for order in book.orders_of(account.id, "open")), account.balance
    paid_before = {order.id for order in book.orders_of(account.id, "paid")}
    *calls, last = [json.loads(line) for line in task["reference"]]
    for one in calls:
        book.call(one.pop("call"), one)
    paid = [order.amount for order in book.orders_of(account.id, "paid") if order.id not in paid_before]
    cancelled = sorted(order.amount for order in book.orders_of(account.id, "cancelled"))
    wanted: dict[str, tuple[list[int], list[int], int, int]] = {
        "sum_open": ([], [], sum(open_before), balance),
        "cancel_small": ([], open_before[:2], 2, balance),
        "pay_cheapest": (open_before[:1], [], balance - open_before[0], balance - open_before[0]),
        "cover": (open_before[-1:], [], open_before[-1], balance),
    }
    return (paid, cancelled, last["answer"], account.balance) == wanted[errand.kind]


def test_tasks_are_written_with_solutions_that_work(strong: ReplyWriter) -> None:
    for seed in range(8):
        tasks = written(strong, seed)
        assert len({task["query"] for task in tasks}) == len(tasks) == 3
        assert all(task["confidence"] == 0.95 and is_solved_by_reference(seed, task) for task in tasks)


def test_known_tasks_are_not_written_again(strong: ReplyWriter) -> None:
    first = [task["query"] for task in written(strong, 3)]
    assert not set(first) & {task["query"] for task in written(strong, 3, first)}


def test_careless_writer_is_less_sure_of_wrong_solutions(noisy: ReplyWriter) -> None:
    tasks = [(seed, task) for seed in range(16) for task in written(noisy, seed)]
    unsure = [one for one in tasks if one[1]["confidence"] < 0.9]
    assert 0 < len(unsure) < len(tasks) // 3
    assert not any(is_solved_by_reference(*one) for one in unsure)
    assert all(is_solved_by_reference(*one) for one in tasks if one not in unsure)


def test_grades_agree_with_the_environment(noisy: ReplyWriter) -> None:
    seen = set()
    for seed in range(NUM_TASKS):
        played = Played(noisy, seed)
        reply = asked(noisy, "grader", case_messages({"task": played.assignment.text, "steps": played.json_steps}))
        grade = json.loads(reply)["score"]
        assert (grade >= 60) == (played.score == 1.0) and not 40 < grade < 60
        seen.add(grade >= 60)
    assert seen == {True, False}


def test_steps_of_a_solution_are_good_and_others_are_not(strong: ReplyWriter) -> None:
    seed = next(seed for seed in range(100) if Assignment.make(seed).kind == "pay_cheapest")
    played = Played(strong, seed)
    (errand,) = read_errands(played.assignment.text)
    look, orders, paid, last = played.steps
    assert step_labels(errand, played.steps) == [True] * 4
    needless = CaseStep('{"call": "get_account", "account": "A1"}', look.observation)
    assert step_labels(errand, [look, needless, orders, last, paid]) == [True, False, True, False, True]
    assert step_labels(errand, [CaseStep("I give up.", "")]) == [False]
    assert step_labels(Errand("sum_open", "Zoe"), played.steps) == [False] * 4


def test_attributor_labels_every_step(noisy: ReplyWriter) -> None:
    for seed in range(NUM_TASKS):
        played = Played(noisy, seed)
        steps = [{"step": number, **step} for number, step in enumerate(played.json_steps, 1)]
        case = {"task": played.assignment.text, "steps": steps, "outcome": 2 * (played.score - 0.5)}
        lines = asked(noisy, "attributor", case_messages(case)).splitlines()
        heads = [f"Step {number} judgment" for number in range(1, len(steps) + 1)]
        assert [line.partition(":")[0] for line in lines] == heads
        if played.score == 1.0:
            assert lines[-1].endswith("GOOD")
        else:
            assert any(line.endswith("BAD") for line in lines)


def rollouts(*scores: float) -> list[dict[str, Any]]:
    return [{"score": score, "messages": [{"role": "assistant", "content": "{}"}]} for score in scores]


@pytest.mark.parametrize(
    ("scores", "kinds"), [((1.0, 1.0), ["strategy"]), ((0.2,), ["lesson"]), ((0.0, 1.0), ["strategy", "lesson"])]
)
def test_lessons_follow_from_successes_and_failures(
    strong: ReplyWriter, scores: Sequence[float], kinds: list[str]
) -> None:
    case = {"task": TEXTS["cover"].format(giver="Ada", owner="Ben"), "rollouts": rollouts(*scores)}
    records = json.loads(asked(strong, "lesson-writer", case_messages(case)))
    assert [record["kind"] for record in records] == kinds
    assert all(record["situation"] == SITUATIONS["cover"] for record in records)
    for record in records:
        assert json.loads(asked(strong, "lesson-checker", case_messages({**case, "record": record})))["valid"] is True


@pytest.mark.parametrize("advice", [WARNINGS["sum_open"], "Submit 4900."])
def test_lessons_about_something_else_are_refused(strong: ReplyWriter, advice: str) -> None:
    record = {"kind": "lesson", "situation": "Cancel orders", "advice": advice}
    case = {"task": TEXTS["cancel_small"].format(owner="Ben"), "rollouts": rollouts(0.0), "record": record}
    assert json.loads(asked(strong, "lesson-checker", case_messages(case)))["valid"] is False


@pytest.mark.parametrize("role", ["task-writer", "grader", "lesson-writer", "lesson-checker"])
@pytest.mark.parametrize("text", ["", "{", "[1]", '{"steps": 3, "task": 4, "known": 5, "rollouts": 6, "record": 7}'])
def test_odd_prompts_have_a_reply(strong: ReplyWriter, role: str, text: str) -> None:
    json.loads(asked(strong, role, [{"role": "user", "content": text}]))


def test_calls_and_results_are_found_inside_of_other_json() -> None:
    inner = json.dumps([{"content": 'Now:\n{"call": "submit", "answer": 2}'}, {"content": '{"submitted": true}'}])
    assert list(read_records(f"messages: {json.dumps({'query': inner})}")) == [
        {"call": "submit", "answer": 2},
        {"submitted": True},
    ]
    assert list(read_records("{" * 500)) == []


@pytest.mark.parametrize(
    "text", ['{"orders": 3}', '{"source": 1, "target": 2}', '{"account": {}, "holder": 1, "balance": "x"}']
)
def test_odd_results_change_nothing(text: str) -> None:
    assert Desk.read(text).accounts == {}
