"""Tables of the stage `scores`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import PARTS, PARTS_OBJECT, STRINGS, Table, column, object_items, required
from treadle.environments.rollouts.tables import TOOL_COUNTS

SCORES = Table(
    "scores",
    8,
    ("rollout_key",),
    pa.schema(
        [
            column("rollout_key", pa.string(), "the rollout"),
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the rollout"),
            column("domain", pa.string(), "copied from the rollout"),
            column("environment", pa.string(), "copied from the rollout"),
            column("model", pa.string(), "copied from the rollout"),
            column("sample_index", pa.int32(), "copied from the rollout"),
            column("status", pa.string(), "copied from the rollout"),
            column(
                "prediction",
                pa.string(),
                "extracted answer, or empty; the beginning of the last turn if the scorer reads all",
            ),
            column(
                "is_valid_answer",
                pa.bool_(),
                "answered, or with a candidate for the answer, and the prediction is not empty",
            ),
            column(
                "correct",
                pa.bool_(),
                "the verdict of the scorer; null if it failed",
                nullable=True,
            ),
            column(
                "score",
                pa.float64(),
                "P: 1 or 0 for math and choice, F1 for qa; the reward if the environment scores; null if the scorer "
                "failed",
                nullable=True,
            ),
            column("is_reward", pa.bool_(), "score is a reward, which may be any number; else it is a share"),
            column("parts", PARTS, "further figures by name, as the scorer declares them"),
            column(
                "scorer",
                pa.string(),
                "what decided, such as status, choice, qa_f1, math_text, judge, or a name under `scorers`; "
                "`similarity` adds its measure",
            ),
            column("error", pa.string(), "why there is no verdict", nullable=True),
            column(
                "detail",
                pa.string(),
                "JSON of the scorer: for `programs` a list of {name, call, passed, expected, got, error} of each test; "
                "null for none",
                nullable=True,
            ),
            column(
                "efficiency",
                pa.float64(),
                "score divided by requested calls (by 1 without calls); null if the score is null",
                nullable=True,
            ),
            column("truncated", pa.bool_(), "copied from the rollout"),
            column("num_turns", pa.int32(), "copied from the rollout"),
            column("calls_requested", pa.int32(), "copied from the rollout"),
            column("calls_executed", pa.int32(), "copied from the rollout"),
            column("tools", TOOL_COUNTS, "copied from the rollout"),
            column("failed_calls", pa.int32(), "copied from the rollout"),
            column("prompt_tokens", pa.int64(), "copied from the rollout"),
            column("completion_tokens", pa.int64(), "copied from the rollout"),
            column(
                "reasoning_tokens",
                pa.int32(),
                "L: tokens without tool results; null without ids and without a tokenizer",
                nullable=True,
            ),
            column("output_chars", pa.int32(), "characters without tool results"),
            column(
                "judge_status",
                pa.string(),
                "null if no judge was asked about the answer; parsed: judges decided; fallback_rule: a tie, or none "
                "could be asked, so the rule decided; failed: no reply could be parsed",
                nullable=True,
            ),
            column(
                "judges",
                pa.string(),
                "JSON object: judge asked about it -> {verdict, status, raw}, with a grade also {grade, parts}; "
                "statuses as in `judge_status`",
            ),
            column(
                "votes_yes",
                pa.int32(),
                "votes that there is a redundant or ineffective call; 0 without calls; null without votes",
                nullable=True,
            ),
            column("votes_no", pa.int32(), "votes that there is none", nullable=True),
            column("votes_abstained", pa.int32(), "replies without a vote", nullable=True),
            column(
                "best_of",
                pa.string(),
                "whether a model picked it among the attempts at its question: picked, passed_over, or undecided if no "
                "choice could be read; null if it was not compared",
                nullable=True,
            ),
        ]
    ),
    "One verdict per rollout.",
    parsed={
        "judges": object_items(
            "judge",
            pa.field("verdict", pa.bool_()),
            required("status", pa.string()),
            required("raw", STRINGS),
            pa.field("grade", pa.float64()),
            pa.field("parts", PARTS_OBJECT),
        )
    },
)


JUDGEMENTS = Table(
    "judgements",
    3,
    ("judgement_key",),
    pa.schema(
        [
            column(
                "judgement_key",
                pa.string(),
                "32 hex digits: digest of judge, prompts, and everything that it was asked about",
            ),
            column(
                "kind",
                pa.string(),
                "redundancy: votes on the calls of a trajectory; best_of: choice among attempts; else the type of the "
                "judge, such as correctness",
            ),
            column("judge", pa.string(), "name of the model in the configuration"),
            column("question_key", pa.string(), "the question"),
            column("rollout_key", pa.string(), "the trajectory, the first one with this answer, or the first attempt"),
            column("prediction", pa.string(), "the answer; empty if the trajectory is judged"),
            column("status", pa.string(), "parsed, or failed: no reply could be parsed"),
            column("correct", pa.bool_(), "the verdict on the answer; null without one", nullable=True),
            column("grade", pa.float64(), "the grade; null for verdicts and votes", nullable=True),
            column("parts", PARTS, "numbers that belong to the grade, by the names that the judge declares"),
            column("votes_yes", pa.int32(), "votes that there is a wasted call; null for answers", nullable=True),
            column("votes_no", pa.int32(), "votes that there is none", nullable=True),
            column("votes_abstained", pa.int32(), "replies without a vote", nullable=True),
            column(
                "picked",
                pa.int32(),
                "place of the chosen attempt among those with an answer, by sample_index, from 0; null without one",
                nullable=True,
            ),
            column("replies", STRINGS, "replies of the model, unchanged"),
            column("error", pa.string(), "why there is no verdict, or fewer votes than wanted", nullable=True),
            column("prompt_tokens", pa.int64(), "summed over its requests"),
            column("completion_tokens", pa.int64(), "summed over its requests"),
        ]
    ),
    "Judgements of answers and trajectories by judge models, one each.",
    required=False,
)
