"""Tables of the stage `report`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import STRINGS, Table, column

SUMMARY = Table(
    "summary",
    5,
    ("model", "dataset", "figure"),
    pa.schema(
        [
            column("model", pa.string(), "model of the rollouts"),
            column(
                "dataset",
                pa.string(),
                "data set; or an unweighted mean over those of the headline, or over all if there are none of "
                "these: all, math, knowledge; or over all if that is another: every",
            ),
            column("environments", STRINGS, "names of the environments of the tasks"),
            column(
                "figure",
                pa.string(),
                "one of docs/behaviour/metrics.md, such as calls:<tool>; pass@k; response_tokens:p50; or a number of "
                "rollouts: num_failed, num_valid, status:..., scorer:..., judge_status:..., tools_used:..., "
                "votes:..., or num_judged_jointly, judge_agreement, judge_kappa",
            ),
            column("value", pa.float64(), "the figure; null if no rollout has it", nullable=True),
            column("low", pa.float64(), "95 % interval, lower end; null if there is none", nullable=True),
            column("high", pa.float64(), "95 % interval, upper end; null if there is none", nullable=True),
            column(
                "method",
                pa.string(),
                "how the interval was made: wilson, clustered, bootstrap, normal, constant, unknown; combined for "
                "means over data sets; null for numbers of rollouts and quantiles",
                nullable=True,
            ),
            column("num_datasets", pa.int32(), "data sets that it averages; 1 for a data set"),
            column("num_rollouts", pa.int64(), "rows scored"),
            column("num_questions", pa.int64(), "different questions"),
            column("num_undecided", pa.int64(), "rows without this figure"),
        ]
    ),
    "Figures of the evaluation, one per row, by model and data set.",
)


COMPARISONS = Table(
    "comparisons",
    1,
    ("first", "second", "dataset", "figure"),
    pa.schema(
        [
            column("first", pa.string(), "model"),
            column("second", pa.string(), "model that it is compared with"),
            column("dataset", pa.string(), "data set, or a mean over data sets, as in `summary`"),
            column("figure", pa.string(), "figure that is compared"),
            column("num_questions", pa.int64(), "questions for which both have the figure"),
            column("num_dropped", pa.int64(), "further questions, for which one or both lack it"),
            column(
                "num_dropped_rollouts",
                pa.int64(),
                "rollouts of both that were left out, including those of these questions",
            ),
            column("first_value", pa.float64(), "mean over the questions, each by the mean of its rollouts"),
            column("second_value", pa.float64(), "the same of the second"),
            column("difference", pa.float64(), "second minus first"),
            column("low", pa.float64(), "its 95 % interval, lower end; null if there is none", nullable=True),
            column("high", pa.float64(), "upper end", nullable=True),
            column("method", pa.string(), "how the interval was made"),
            column("p_value", pa.float64(), "two-sided, of this row alone"),
            column("p_adjusted", pa.float64(), "the same by Holm for all rows of the table"),
            column("test", pa.string(), "mcnemar, permutation_exact or permutation"),
            column("gained", STRINGS, "keys of questions that only the second gets mostly right; for `score`"),
            column("lost", STRINGS, "keys of questions that only the first gets mostly right; for `score`"),
            column(
                "note",
                pa.string(),
                "differences between the two besides the model, such as the judge; null if there are none",
                nullable=True,
            ),
        ]
    ),
    "Pairs of models on the same questions.",
    required=False,
)


GROUPS = Table(
    "groups",
    1,
    ("model", "dataset", "column", "group", "figure"),
    pa.schema(
        [
            column("model", pa.string(), "model of the rollouts"),
            column("dataset", pa.string(), "data set"),
            column(
                "column",
                pa.string(),
                "column of its questions, such as Level, topic or info.lang; or response tokens, and quarters by them",
            ),
            column(
                "group", pa.string(), "value of that column; (none) for questions without one; or the range of tokens"
            ),
            column("figure", pa.string(), "accuracy, score or reward, num_turns, calls_requested, completion_tokens"),
            column("value", pa.float64(), "the figure; null if no rollout has it", nullable=True),
            column("low", pa.float64(), "95 % interval, lower end; null if there is none", nullable=True),
            column("high", pa.float64(), "upper end", nullable=True),
            column("method", pa.string(), "how the interval was made, as in `summary`", nullable=True),
            column("num_questions", pa.int64(), "different questions"),
            column("num_rollouts", pa.int64(), "rows scored"),
            column("num_undecided", pa.int64(), "rows without this figure"),
        ]
    ),
    "Figures by columns of questions (level, topic, category, language) and by the length of responses.",
    required=False,
)
