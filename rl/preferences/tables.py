"""Tables of the stages `preferences`, `candidates` and `advantages`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import Table, column, required
from treadle.environments.rollouts.tables import TRAJECTORY_FORMS

_IDS = pa.list_(pa.int32())
_MASK = pa.list_(pa.int8())
_MESSAGES = pa.list_(pa.struct([required("role", pa.string()), required("content", pa.string())]))


def _side(name: str) -> list[pa.Field]:
    return [
        column(f"{name}_text", pa.string(), f"{name} side as text"),
        column(f"{name}_ids", _IDS, "its token ids after the prompt"),
        column(
            f"{name}_mask", _MASK, "1 for each of them that the model sampled, the ends of its turns included; else 0"
        ),
        column(f"{name}_turns", _IDS, "number of sampled ids of each turn of the model"),
    ]


PREFERENCES = Table(
    "preferences",
    1,
    ("pair_key",),
    pa.schema(
        [
            column("pair_key", pa.string(), "16 hex digits: digest of both sides and the kind"),
            column("kind", pa.string(), "trajectory, dialogue (without hidden information) or turn"),
            column("question_key", pa.string(), "the task"),
            column("dataset", pa.string(), "copied from the task"),
            column("environment", pa.string(), "copied from the task"),
            column("chosen_key", pa.string(), "the better rollout; for turns its turn key and candidate"),
            column("rejected_key", pa.string(), "the worse one"),
            column("margin", pa.float64(), "difference of their rewards, or of their advantages in nats"),
            column(
                "hidden", pa.bool_(), "whether the prompt states hidden information, so that only critics may read it"
            ),
            column("messages", pa.string(), "JSON list of {role, content}: the prompt"),
            column("prompt_ids", _IDS, "its token ids, the same for both sides"),
            *_side("chosen"),
            *_side("rejected"),
            column("tokenizer_digest", pa.string(), "tokenizer and chat template"),
        ]
    ),
    "Pairs of trajectories or of candidates for one turn, one of them preferred.",
    parsed={"messages": _MESSAGES},
)


CANDIDATES = Table(
    "candidates",
    1,
    ("turn_key", "candidate"),
    pa.schema(
        [
            column("turn_key", pa.string(), "16 hex digits: digest of rollout and turn"),
            column("candidate", pa.int32(), "0 to N-1"),
            column("rollout_key", pa.string(), "rollout whose turn it could replace"),
            column("question_key", pa.string(), "the task"),
            column("dataset", pa.string(), "copied from the rollout"),
            column("environment", pa.string(), "copied from the rollout"),
            column("turn", pa.int32(), "number of the turn in the rollout, from 0"),
            column("first_messages", pa.string(), "copied from the rollout"),
            column("tool_schemas", pa.string(), "copied from the rollout"),
            column("messages", pa.string(), "JSON list of {role, content}: the conversation before the turn"),
            column("prompt_ids", _IDS, "token ids before the turn, as the policy sees them"),
            column("num_first_ids", pa.int32(), "number of them before the first turn of the rollout"),
            column("text", pa.string(), "what the policy wrote"),
            column("ids", _IDS, "its token ids, with the end of the turn if the policy ended it"),
            column("mask", _MASK, "1 for each of them that was sampled as it is, else 0"),
            column("num_tokens", pa.int32(), "number of ids with mask 1"),
            column("truncated", pa.bool_(), "whether it reached the limit of tokens"),
            column("tokenizer_digest", pa.string(), "tokenizer and chat template"),
        ]
    ),
    "Alternatives that the policy sampled for turns of its rollouts.",
    parsed={"first_messages": _MESSAGES, "messages": _MESSAGES, "tool_schemas": TRAJECTORY_FORMS["tool_schemas"]},
)


ADVANTAGES = Table(
    "advantages",
    1,
    ("turn_key", "candidate"),
    pa.schema(
        [
            column("turn_key", pa.string(), "the turn"),
            column("candidate", pa.int32(), "the candidate"),
            column("rollout_key", pa.string(), "copied from the candidate"),
            column("question_key", pa.string(), "copied from the candidate"),
            column("turn", pa.int32(), "copied from the candidate"),
            column("critic_sum", pa.float64(), "log-probability of the masked ids under the critic, in nats"),
            column("reference_sum", pa.float64(), "the same ids under the reference"),
            column("num_tokens", pa.int32(), "number of these ids"),
            column(
                "advantage", pa.float64(), "critic_sum - reference_sum, per token unless the critic was trained on sums"
            ),
        ]
    ),
    "Advantages of candidates: how much likelier a critic finds them than its start does.",
)
