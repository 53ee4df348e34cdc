"""Tables of the stage `sft_rows`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import STRINGS, Table, column, required
from treadle.environments.rollouts.tables import TOOL_COUNTS, tool_schemas

_CALLS = pa.list_(
    pa.struct([required("id", pa.string()), required("name", pa.string()), required("arguments", pa.string())])
)

_MESSAGES = pa.list_(
    pa.struct(
        [
            required("role", pa.string()),
            required("content", pa.string()),
            pa.field("reasoning", pa.string()),
            pa.field("tool_calls", _CALLS),
            pa.field("results", pa.list_(pa.list_(pa.int32()))),
            pa.field("num_carried_chars", pa.int32()),
            pa.field("tool_call_id", pa.string()),
        ]
    )
)


SFT_ROWS = Table(
    "sft_rows",
    3,
    ("rollout_key",),
    pa.schema(
        [
            column("rollout_key", pa.string(), "the trajectory; its further rows end in -2, -3, ..."),
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the trajectory"),
            column("domain", pa.string(), "copied from the trajectory"),
            column("model", pa.string(), "copied from the trajectory"),
            column("operator", pa.string(), "operator that made the trajectory"),
            column("parents", STRINGS, "copied from the trajectory"),
            column("round", pa.int32(), "flywheel round; 0 for initial rollouts"),
            column("repaired", pa.bool_(), "whether thought markers were added or removed"),
            column(
                "messages",
                pa.string(),
                "JSON list of {role, content}: system (if there is one) and user messages before the first turn, then "
                "each turn of the model as `assistant`, without its end, and between two turns the messages of the "
                "environment as `user`, `tool` or `system`; the last one is a turn. A turn may have `reasoning` "
                "(text), `tool_calls` (native calls {id, name, arguments}, with a JSON object as text; content is the "
                "text next to them), and `results` ([start, end] of tool results inside its content, in characters). A "
                "`tool` message has the `tool_call_id` of the call that it answers. The first turn of a row that "
                "continues a trimmed context has `num_carried_chars`: the length of what is left of earlier turns",
            ),
            column(
                "tool_schemas",
                pa.string(),
                "JSON list of {name, description, parameters}: the tools that can be called natively; [] for none",
            ),
            column(
                "input_ids",
                pa.list_(pa.int32()),
                "prompt without a hint, turns and what is between them, end of the last turn; empty in text mode",
            ),
            column("labels", pa.list_(pa.int32()), "the same, -100 if there is no loss; empty in text mode"),
            column("num_tokens", pa.int32(), "length of input_ids"),
            column("num_prompt_tokens", pa.int32(), "of these, before the first turn, or what is left of earlier ones"),
            column("num_result_tokens", pa.int32(), "of these, in tool results inside a turn"),
            column(
                "num_message_tokens",
                pa.int32(),
                "of these, in messages of the environment and in what the chat template puts around turns",
            ),
            column("num_target_tokens", pa.int32(), "labels that are not -100"),
            column("calls_requested", pa.int32(), "tool calls that the agent requested"),
            column("calls_executed", pa.int32(), "tool calls that ran"),
            column("tools", TOOL_COUNTS, "calls by tool, as in `rollouts`"),
            column("environment_digest", pa.string(), "prompt, tags, tools and limits"),
            column("tokenizer_digest", pa.string(), "tokenizer and chat template; empty in text mode"),
        ]
    ),
    "Fine-tuning rows: accepted trajectories, shuffled, with the token ids of prompt and output.",
    parsed={"messages": _MESSAGES, "tool_schemas": tool_schemas()},
)


SFT_REJECTIONS = Table(
    "sft_rejections",
    1,
    ("rollout_key",),
    pa.schema(
        [
            column("rollout_key", pa.string(), "the trajectory"),
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the trajectory"),
            column("domain", pa.string(), "copied from the trajectory"),
            column("operator", pa.string(), "operator that made the trajectory"),
            column("round", pa.int32(), "flywheel round"),
            column("status", pa.string(), "how the rollout ended"),
            column("calls_requested", pa.int32(), "tool calls that the agent requested"),
            column("num_tokens", pa.int32(), "tokens that the row would have; 0 in text mode"),
            column("reason", pa.string(), "code of the first rule that it breaks, or why it was not selected"),
            column("reasons", STRINGS, "codes of all rules that it breaks"),
        ]
    ),
    "Trajectories that did not become fine-tuning rows, each with its reasons.",
    required=False,
)
