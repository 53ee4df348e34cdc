"""Tables of the stage `pools`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import JOB, STRINGS, Table, column, object_items, renamed, required, value_items
from treadle.environments.rollouts.tables import ROLLOUTS, TRAJECTORY_FORMS

_USAGE = object_items(
    "role",
    required("calls", pa.int64()),
    required("prompt_tokens", pa.int64()),
    required("completion_tokens", pa.int64()),
)


POOLS = Table(
    "pools",
    6,
    ("rollout_key",),
    pa.schema(
        [
            *renamed(
                ROLLOUTS.schema.remove(ROLLOUTS.schema.get_field_index(JOB.name)),
                rollout_key="16 hex digits: digest of question, model, round, operator and parent",
                sample_index="position in the question's pool, from 0",
                operator="operator that made the trajectory: initial, rerollout, redundant_mod, global_refine, "
                "self_correct, hint_step, hint_tail, reflect, or one of the user's",
                parents="key of the trajectory that was edited or followed; empty for initial ones",
                round="flywheel round that made it; 0 for initial ones",
                prompt_tokens="of the policy, summed over its requests; a prefix costs nothing again",
                completion_tokens="sampled by the policy",
            ),
            column("prediction", pa.string(), "extracted answer; empty if there is none"),
            column(
                "correct",
                pa.bool_(),
                "the judge's verdict; null if it is unknown, which never counts as right",
                nullable=True,
            ),
            column("score", pa.float64(), "1 or 0 for math and choice, F1 for qa; null if unknown", nullable=True),
            column(
                "judge",
                pa.string(),
                "JSON object {method, raw, error}: deciding method, replies of the judge model, error",
            ),
            column("edit_step", pa.int32(), "1-based step of the parent that was edited or followed", nullable=True),
            column("edit_text", pa.string(), "the hint, the analysis or the new step; empty if there is none"),
            column("prompts", pa.string(), "JSON object: prompt used -> its digest"),
            column("models", pa.string(), "JSON object: role -> model that had it"),
            column("usage", pa.string(), "JSON object: role -> {calls, prompt_tokens, completion_tokens}"),
        ]
    ),
    "Judged trajectories of the flywheel: initial rollouts, and those that operators made from them.",
    parsed={
        **TRAJECTORY_FORMS,
        "judge": pa.struct([required("method", pa.string()), required("raw", STRINGS), pa.field("error", pa.string())]),
        "prompts": value_items("prompt", required("digest", pa.string())),
        "models": value_items("role", required("model", pa.string())),
        "usage": _USAGE,
    },
)


POOL_QUESTIONS = Table(
    "pool_questions",
    2,
    ("question_key",),
    pa.schema(
        [
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the question"),
            column("domain", pa.string(), "copied from the question"),
            column(
                "status",
                pa.string(),
                "ok; partial: an operator failed; timeout: time limit reached; failed: infrastructure, accepted",
            ),
            column("error", pa.string(), "cause, if the status is not ok", nullable=True),
            column("num_rounds", pa.int32(), "finished rounds"),
            column("num_trajectories", pa.int32(), "in its pool"),
            column("num_correct", pa.int32(), "of these, with a right answer"),
            column("initial_correct", pa.bool_(), "whether an initial rollout was right"),
            column(
                "usage", pa.string(), "JSON object: role -> {calls, prompt_tokens, completion_tokens}, all together"
            ),
            JOB,
        ]
    ),
    "Result of the flywheel per question.",
    parsed={"usage": _USAGE},
)


POOL_EVENTS = Table(
    "pool_events",
    1,
    ("question_key", "event_index"),
    pa.schema(
        [
            column("question_key", pa.string(), "the question"),
            column("event_index", pa.int32(), "from 0, in the order of rounds, parents and operators"),
            column("round", pa.int32(), "flywheel round"),
            column("operator", pa.string(), "operator that was applied, locate_flaw, or initial"),
            column("parent", pa.string(), "trajectory that it was applied to; empty for initial"),
            column("parent_correct", pa.bool_(), "whether the parent was right"),
            column("outcome", pa.string(), "produced, found, duplicate, rejected or failed"),
            column("reason", pa.string(), "why it was rejected or failed; empty if it produced a trajectory"),
            column("reply", pa.string(), "the rejected reply of the model, unchanged"),
            column("error", pa.string(), "what failed", nullable=True),
            column(
                "rollout_key", pa.string(), "the trajectory that it made, or the one that it duplicates", nullable=True
            ),
            column("usage", pa.string(), "JSON object: role -> {calls, prompt_tokens, completion_tokens}"),
        ]
    ),
    "Every application of an operator with its result, and initial rollouts that gave no trajectory.",
    required=False,
    parsed={"usage": _USAGE},
)
