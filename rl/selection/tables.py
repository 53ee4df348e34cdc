"""Tables of the stage `selection`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import PARTS, STRINGS, Table, column

_PROMPT = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))


_REWARD_MODEL = pa.struct([("ground_truth", STRINGS), ("style", pa.string())])


_EXTRA_INFO = pa.struct(
    [
        ("index", pa.int64()),
        ("need_tools_kwargs", pa.bool_()),
        ("question", pa.string()),
        ("split", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("stage", pa.int64()),
        ("score_tool", pa.float64()),
        ("score_corr", pa.float64()),
        ("rank", pa.int64()),
        ("choices", STRINGS),
    ]
)


RL_ROWS = Table(
    "rl_rows",
    4,
    ("question_key",),
    pa.schema(
        [
            column("data_source", pa.string(), "math_effi_rl, qa_effi_rl or choice_effi_rl: selects the reward"),
            column(
                "prompt", _PROMPT, "system message if the environment has one, and the question as shown to the agent"
            ),
            column("ability", pa.string(), "math, qa or choice"),
            column("reward_model", _REWARD_MODEL, "accepted gold answers; style is always `rule`"),
            column(
                "extra_info",
                _EXTRA_INFO,
                "for trainers of verl's kind: index (unique, in the order of the selection, before the shuffle), the "
                "question without options, split, id, source, stage (the phase), objectives, rank, options",
            ),
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the question"),
            column("domain", pa.string(), "copied from the question"),
            column("phase", pa.int32(), "phase of the curriculum that it was selected for"),
            column("model", pa.string(), "policy whose rollouts were used, by its name in the rollouts"),
            column("parents", STRINGS, "keys of the rollouts that were used, in their order"),
            column("correctness", pa.list_(pa.float64()), "their scores: 0 or 1 for math and choice, F1 for qa"),
            column("calls", pa.list_(pa.int32()), "their executed tool calls"),
            column("num_unusable", pa.int32(), "further rollouts, lost to infrastructure or without a verdict"),
            column("score_tool", pa.float64(), "population standard deviation of `calls`"),
            column("score_corr", pa.float64(), "population standard deviation of `correctness`"),
            column("method", pa.string(), "type of the selection method"),
            column(
                "rank",
                pa.int32(),
                "group of the method, 0 the first, such as the Pareto front; within a domain under quotas; null if the "
                "method has no groups",
                nullable=True,
            ),
            column("parts", PARTS, "further numbers of the method, by the names that it declares"),
            column("environment_digest", pa.string(), "prompt, tags, tools and limits of the rollouts"),
            column("format", pa.string(), "copied from the question", nullable=True),
            column("scorer", pa.string(), "copied from the question", nullable=True),
            column("environment", pa.string(), "copied from the question"),
        ]
    ),
    "Questions chosen for reinforcement learning, shuffled; the first five columns are those of verl's parquet files.",
)


RL_REJECTIONS = Table(
    "rl_rejections",
    2,
    ("question_key",),
    pa.schema(
        [
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the question"),
            column("domain", pa.string(), "copied from the question"),
            column("reason", pa.string(), "code of the first filter that it did not pass, over_quota or over_limit"),
            column("num_rollouts", pa.int32(), "all its rollouts"),
            column("num_usable", pa.int32(), "of these, finished and with a verdict"),
            column("mean_correctness", pa.float64(), "of the usable ones; null without any", nullable=True),
            column("score_tool", pa.float64(), "standard deviation of executed calls; null as above", nullable=True),
            column("score_corr", pa.float64(), "standard deviation of correctness; null as above", nullable=True),
            column("rank", pa.int32(), "its group; null if it was filtered out, or without groups", nullable=True),
            column("parts", PARTS, "as in rl_rows; empty if it was filtered out"),
        ]
    ),
    "Questions with rollouts that were not chosen for reinforcement learning, each with its reason.",
    required=False,
)
