"""List the roles around the ledger with the functions that play them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.ledger.clerk import clerk_turn, explorer_turn
from treadle.demo.tutor.ledger.judging import grade_reply, label_reply
from treadle.demo.tutor.ledger.lessons import check_reply, lesson_reply
from treadle.demo.tutor.ledger.task_writer import write_tasks
from treadle.demo.tutor.policy import ErrorRates
from treadle.demo.tutor.seeded_draws import Draws

LEDGER_ROLES: Mapping[str, Callable[[Conversation, ErrorRates, Draws], str]] = {
    "clerk": clerk_turn,
    "explorer": lambda conversation, rates, draws: explorer_turn(conversation, draws),
    "task-writer": write_tasks,
    "grader": lambda conversation, rates, draws: grade_reply(conversation),
    "attributor": lambda conversation, rates, draws: label_reply(conversation),
    "lesson-writer": lambda conversation, rates, draws: lesson_reply(conversation),
    "lesson-checker": lambda conversation, rates, draws: check_reply(conversation),
}
"""Role -> function from prompt, rates of errors and draws to its reply."""
