"""Tables of the stage `rollouts`, and columns that other tables of trajectories share."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import JOB, PARTS_OBJECT, STRINGS, Table, column, json_text, required

_SAMPLES = pa.list_(
    pa.struct(
        [
            pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),
            pa.field("training_prompt_ids", pa.list_(pa.int32())),
            pa.field("ids", pa.list_(pa.int32()), nullable=False),
            pa.field("origins", pa.list_(pa.int8()), nullable=False),
            pa.field("turn_starts", pa.list_(pa.int32()), nullable=False),
            pa.field(
                "spans",
                pa.list_(
                    pa.struct(
                        [
                            pa.field("role", pa.string(), nullable=False),
                            pa.field("start", pa.int32(), nullable=False),
                            pa.field("end", pa.int32(), nullable=False),
                        ]
                    )
                ),
                nullable=False,
            ),
        ]
    )
)


TOOL_COUNTS = pa.list_(
    pa.struct(
        [
            pa.field("tool", pa.string(), nullable=False),
            pa.field("requested", pa.int32(), nullable=False),
            pa.field("executed", pa.int32(), nullable=False),
            pa.field("failed", pa.int32(), nullable=False),
        ]
    )
)


_TOOL_SECONDS = pa.list_(
    pa.struct(
        [
            pa.field("tool", pa.string(), nullable=False),
            pa.field("executed", pa.int32(), nullable=False),
            pa.field("seconds", pa.float64(), nullable=False),
        ]
    )
)


_CALL_TIMES = pa.list_(
    pa.struct([required("id", pa.string()), required("started_s", pa.float64()), required("seconds", pa.float64())])
)


_TURN_USAGE = pa.list_(
    pa.struct(
        [
            required("prompt_tokens", pa.int64()),
            required("completion_tokens", pa.int64()),
            required("model_seconds", pa.float64()),
            required("tool_seconds", pa.float64()),
        ]
    )
)


TURN_REWARDS = column(
    "turn_rewards",
    pa.list_(pa.float64()),
    "reward of each turn from the environment, null for turns without one; empty if no turn has one",
    null_items=True,
)


SEGMENTS = pa.list_(
    pa.struct(
        [
            required("kind", pa.string()),
            required("text", pa.string()),
            required("start", pa.int32()),
            required("end", pa.int32()),
        ]
    )
)
"""Arrow type of the column `segments` after its JSON text is parsed."""


def tool_schemas(*marks: pa.Field) -> pa.DataType:
    """Return the Arrow type of a column of tool schemas after its JSON text is parsed; `parameters` stay JSON text."""
    return pa.list_(
        pa.struct(
            [required("name", pa.string()), required("description", pa.string()), json_text("parameters"), *marks]
        )
    )


TRAJECTORY_FORMS = {
    "first_messages": pa.list_(pa.struct([required("role", pa.string()), required("content", pa.string())])),
    "tool_schemas": tool_schemas(pa.field("added", pa.bool_())),
    "segments": SEGMENTS,
    "outcome": pa.struct(
        [pa.field("reward", pa.float64()), pa.field("success", pa.bool_()), pa.field("parts", PARTS_OBJECT)]
    ),
    "tool_calls": pa.list_(
        pa.struct(
            [
                pa.field("id", pa.string()),
                required("tool", pa.string()),
                required("argument", pa.string()),
                required("status", pa.string()),
                required("turn", pa.int32()),
                required("result_chars", pa.int64()),
                pa.field("note", pa.string()),
                pa.field("sources", STRINGS),
            ]
        )
    ),
}
"""Arrow types, after their JSON text is parsed, of columns that `rollouts` and `pools` share."""


ROLLOUTS = Table(
    "rollouts",
    6,
    ("rollout_key",),
    pa.schema(
        [
            column("rollout_key", pa.string(), "16 hex digits: digest of question, model, sample and operator"),
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the question"),
            column("domain", pa.string(), "copied from the question"),
            column("model", pa.string(), "name of the model in the configuration"),
            column("sample_index", pa.int32(), "0 to K-1"),
            column("operator", pa.string(), "operator that made the trajectory; `rollout` for a fresh one"),
            column("parents", STRINGS, "keys of the trajectories that it was made from"),
            column("round", pa.int32(), "flywheel round; 0 for a fresh rollout"),
            column("seed", pa.int64(), "seed of the rollout; turn t is sampled with a seed derived from it"),
            column(
                "status",
                pa.string(),
                "how it ended: answered, finished (by the environment), no_answer, filtered, limit, max_turns, "
                "context_full, length, timeout, budget, or failed (infrastructure, accepted by the user)",
            ),
            column("truncated", pa.bool_(), "whether it ended before its task did"),
            column("error", pa.string(), "cause, for failed rollouts", nullable=True),
            column(
                "first_messages",
                pa.string(),
                "JSON list of {role, content}: messages before the first turn, without the hint; null if the rollout "
                "failed",
                nullable=True,
            ),
            column(
                "tool_schemas",
                pa.string(),
                "JSON list of {name, description, parameters}: the tools that the model was told of by their schemas, "
                "with added = true for those that came during the episode; [] without native calls",
            ),
            column("text", pa.string(), "everything after the prompt: turns of the model, tool results, messages"),
            column(
                "segments",
                pa.string(),
                "JSON list of {kind, text, start, end}; start and end index the ids of the sample",
            ),
            column(
                "samples",
                _SAMPLES,
                "token sequences: one, and another one after each trim of the context. prompt_ids (as sampled from), "
                "training_prompt_ids (without the hint; null if there was none), ids after the prompt, per id its "
                "origin (0 system, 1 sampled, 2 model text re-encoded after a cut inside a token, no log-prob loss), "
                "number of ids before each turn, and spans with their role; in text mode all lists are empty",
            ),
            TURN_REWARDS,
            column(
                "reward",
                pa.float64(),
                "reward of the episode from the environment: its outcome's, else the sum of the turns'; null for none",
                nullable=True,
            ),
            column(
                "outcome",
                pa.string(),
                "JSON object {reward, success, parts} that the environment gave for the episode; null for none",
                nullable=True,
            ),
            column(
                "tool_calls",
                pa.string(),
                "JSON list of {tool, argument, status, turn, result_chars}, with id, note and sources if there are any",
            ),
            column("num_turns", pa.int32(), "generation calls that made it"),
            column("calls_requested", pa.int32(), "tool calls that the agent requested"),
            column("calls_executed", pa.int32(), "tool calls that ran"),
            column(
                "tools",
                TOOL_COUNTS,
                "these calls by tool, sorted by name, each name once; `(invalid)` stands for names that no tool can "
                "have; empty without calls",
            ),
            column("failed_calls", pa.int32(), "calls with status error, timeout, invalid or empty"),
            column("prompt_tokens", pa.int64(), "summed over its requests"),
            column("completion_tokens", pa.int64(), "summed over its requests"),
            column("environment", pa.string(), "environment of the task: a name under environments, or default"),
            column("environment_digest", pa.string(), "prompt, tags, tools and limits"),
            column("tokenizer_digest", pa.string(), "tokenizer and chat template; empty in text mode"),
            JOB,
        ]
    ),
    "Trajectories of an agent, nothing scored.",
    parsed=TRAJECTORY_FORMS,
)


ROLLOUT_TELEMETRY = Table(
    "rollout_telemetry",
    6,
    ("rollout_key",),
    pa.schema(
        [
            column("rollout_key", pa.string(), "the rollout"),
            column("attempt", pa.int32(), "attempt in which it was finished; an earlier one for a reused rollout"),
            column("finished_at", pa.string(), "UTC, ISO 8601"),
            column("seconds", pa.float64(), "wall time of the rollout in its last attempt"),
            column("model_seconds", pa.float64(), "waiting for the model, over all attempts"),
            column("tool_seconds", pa.float64(), "waiting for tools, over all attempts; calls of a turn run at once"),
            column(
                "seconds_by_tool",
                _TOOL_SECONDS,
                "calls that ran and their seconds by tool, as named in `tools` of the rollout; without calls before a "
                "restart",
            ),
            column(
                "turns",
                _TURN_USAGE,
                "tokens of each request in order, seconds until its answer, and seconds until its calls ended; without "
                "the turns of a prefix",
            ),
            column(
                "call_times",
                _CALL_TIMES,
                "calls that ran, by their ids: seconds from the first call of the turn to their start, and how long "
                "they took; without calls before a restart",
            ),
            column("num_requests", pa.int32(), "requests that were answered"),
            column("num_retries", pa.int32(), "requests that were sent again"),
            column("endpoint", pa.string(), "URL that sent the last answer"),
            column("wasted_tokens", pa.int64(), "sampled beyond a cut"),
            column(
                "summarizer_prompt_tokens",
                pa.int64(),
                "prompt tokens of the model that summarizes searches, over its calls",
            ),
            column("summarizer_completion_tokens", pa.int64(), "tokens sampled by that model"),
            column("num_restarts", pa.int32(), "times that it began again because its episode could not be resumed"),
            column("voided_tokens", pa.int64(), "prompt and sampled tokens of the attempts before the last restart"),
            column("odd_answers", pa.string(), "JSON object: kind of odd answer -> number of such answers"),
        ]
    ),
    "Volatile facts about rollouts, outside any digest.",
    required=False,
)
