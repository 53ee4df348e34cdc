"""Tables of the stage `questions`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import STRINGS, Table, column

QUESTIONS = Table(
    "questions",
    4,
    ("question_key",),
    pa.schema(
        [
            column(
                "question_key",
                pa.string(),
                "16 hex digits: digest of question, answers, choices, payload, kind, environment",
            ),
            column("dataset", pa.string(), "data set that the question came from"),
            column("domain", pa.string(), "math, qa, choice or task; decides the scorer"),
            column("question", pa.string(), "what the agent is asked"),
            column("answers", STRINGS, "accepted gold answers; empty only for a task that needs none"),
            column("choices", STRINGS, "texts of the options A, B, ...; empty if not multiple choice"),
            column("split", pa.string(), "train or heldout"),
            column("source_file", pa.string(), "file name or hub id that the row was read from"),
            column("source_row", pa.int64(), "1-based row in that file"),
            column("meta", pa.string(), "JSON object: the row's other fields"),
            column(
                "format",
                pa.string(),
                "multiple_choice, assertion, fill_in or open_ended, which decides the prompt; null for none of them",
                nullable=True,
            ),
            column(
                "scorer",
                pa.string(),
                "math, qa, qa_characters, em, choice, workspace_tests or outcome, instead of the domain's; or null",
                nullable=True,
            ),
            column(
                "search",
                pa.string(),
                "local, web or both: where the published evaluation looks for answers; null if unknown",
                nullable=True,
            ),
            column("environment", pa.string(), "environment of the task: a name under environments, or default"),
            column(
                "payload",
                pa.string(),
                "JSON object, {} for none; hidden from the policy: read only by the environment, the scorer and roles "
                "that declare it",
            ),
        ]
    ),
    "Questions with accepted answers, validated and free of duplicates.",
    hidden=frozenset({"payload"}),
)


QUARANTINE = Table(
    "quarantine",
    1,
    ("source_file", "source_row"),
    pa.schema(
        [
            column("source_file", pa.string(), "file name or hub id"),
            column("source_row", pa.int64(), "1-based row in that file; 0 for the whole file"),
            column("dataset", pa.string(), "data set of the row"),
            column("reason", pa.string(), "reason code, such as missing_field or near_duplicate"),
            column("detail", pa.string(), "one sentence"),
            column("raw", pa.string(), "the row as read, payload masked, cut to 2,000 characters"),
        ]
    ),
    "Rows that did not become questions, each with its reason.",
    required=False,
)
