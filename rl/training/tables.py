"""Tables of the stage `rl`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import PARTS, Table, column
from treadle.environments.rollouts.tables import SEGMENTS, TURN_REWARDS

RL_ROLLOUTS = Table(
    "rl_rollouts",
    4,
    ("step", "group", "session"),
    pa.schema(
        [
            column("step", pa.int64(), "step of the training, from 1"),
            column("group", pa.string(), "id of the group that the sampler gave it, unique in the step"),
            column("session", pa.int32(), "place in the group, from 0"),
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the row"),
            column("domain", pa.string(), "copied from the row"),
            column("environment", pa.string(), "copied from the row"),
            column("input", pa.string(), "the question as shown to the agent"),
            column("output", pa.string(), "what follows it, tool results and messages of the environment included"),
            column("segments", pa.string(), "the same as JSON list of {kind, text, start, end}, as in `rollouts`"),
            column("num_turns", pa.int32(), "number of turns of the model"),
            column(
                "reward",
                pa.float64(),
                "reward; null if infrastructure failed or the rule gave none, so the rollout was not scored",
                nullable=True,
            ),
            TURN_REWARDS,
            column("score", pa.float64(), "score of the verdict, within [0, 1]; null without a verdict", nullable=True),
            column("parts", PARTS, "parts of the reward by name, as its rule declares them in `PARTS`"),
            column(
                "notes",
                pa.string(),
                "notes of the rule, such as codes of broken rules, then `lost:` or `hint:` with how",
            ),
            column("prediction", pa.string(), "extracted answer; empty if there is none"),
            column("tool_calls", pa.int32(), "tool calls that ran"),
            column("tool_failures", pa.int32(), "of these, those that failed"),
            column("model_tokens", pa.int32(), "tokens sampled by the policy"),
            column("total_tokens", pa.int32(), "sampled tokens and tokens of tool results"),
            column("finish", pa.string(), "how the rollout ended, as in `rollouts`"),
            column("truncated", pa.bool_(), "whether it ended before its task did"),
            column("branch_parent", pa.int32(), "session that it branched from; null if there is none", nullable=True),
            column("branch_depth", pa.int32(), "number of branches before it; 0 if it started from the question"),
            column("seed", pa.int64(), "seed of the rollout"),
        ]
    ),
    "Rollouts of the reinforcement of a policy, with all parts of their rewards.",
    required=False,
    parsed={"segments": SEGMENTS},
)


_ENVIRONMENTS = pa.list_(
    pa.struct(
        [
            pa.field("environment", pa.string(), nullable=False),
            pa.field("num_rollouts", pa.int64(), nullable=False),
            pa.field("reward", pa.float64()),
            pa.field("score", pa.float64()),
        ]
    )
)


RL_LOG = Table(
    "rl_log",
    8,
    ("step",),
    pa.schema(
        [
            column("step", pa.int64(), "step of the training, from 1"),
            column("reward", pa.float64(), "mean reward; null if no rollout has one", nullable=True),
            column("reward_std", pa.float64(), "mean over groups of the standard deviation within", nullable=True),
            column("score", pa.float64(), "mean score of the verdicts, each within [0, 1]", nullable=True),
            column("answered", pa.float64(), "share of rollouts that ended with an answer", nullable=True),
            column("cut_off", pa.float64(), "share that reached the token limit", nullable=True),
            column("timeout", pa.float64(), "share whose tool time was used up", nullable=True),
            column("calls", pa.float64(), "mean tool calls that ran", nullable=True),
            column("tool_failures", pa.float64(), "mean failed ones", nullable=True),
            column(
                "web_misses", pa.float64(), "mean number of searches without an entry in the web record", nullable=True
            ),
            column("length", pa.float64(), "mean tokens sampled by the policy", nullable=True),
            column("parts", PARTS, "mean of each part of the rewards by name"),
            column("num_rollouts", pa.int64(), "rollouts of the step"),
            column("num_groups", pa.int64(), "groups of the step"),
            column("num_equal_groups", pa.int64(), "groups with equal rewards, which give no gradient"),
            column("num_draws", pa.int64(), "draws of questions; null without dynamic sampling", nullable=True),
            column(
                "num_dropped_groups",
                pa.int64(),
                "groups that it dropped for equal rewards; null without dynamic sampling",
                nullable=True,
            ),
            column(
                "num_surplus_groups",
                pa.int64(),
                "groups with different rewards that it did not need; null without dynamic sampling",
                nullable=True,
            ),
            column(
                "num_lost",
                pa.int64(),
                "rollouts without a reward because infrastructure failed each time; null if none was lost",
                nullable=True,
            ),
            column("num_lost_groups", pa.int64(), "groups of which too few rollouts were left", nullable=True),
            column("num_too_long", pa.int64(), "rollouts whose prompts left no room for a turn", nullable=True),
            column("num_cancelled", pa.int64(), "rollouts cancelled; null without `oversample`", nullable=True),
            column("cancelled_length", pa.float64(), "mean tokens sampled by the policy in them", nullable=True),
            column("num_unused", pa.int64(), "finished rollouts that were not chosen; null like these", nullable=True),
            column("num_audited_groups", pa.int64(), "groups in which nothing was cancelled", nullable=True),
            column(
                "length_bias", pa.float64(), "in them, mean length of trained rollouts minus that of all", nullable=True
            ),
            column("reward_bias", pa.float64(), "the same for rewards; null without audited groups", nullable=True),
            column("num_experiences", pa.int64(), "records in the pool of experience; null without one", nullable=True),
            column("hinted", pa.float64(), "share of rollouts that saw experience; null like this", nullable=True),
            column("hint_cut", pa.float64(), "share whose training prompts lack it; null like this", nullable=True),
            column("loss", pa.float64(), "policy loss; null if none is logged", nullable=True),
            column("entropy", pa.float64(), "mean entropy of the policy; null if none is logged", nullable=True),
            column("learning_rate", pa.float64(), "at this step; null if none is logged", nullable=True),
            column("grad_norm", pa.float64(), "before clipping; null if none is logged", nullable=True),
            column("seconds", pa.float64(), "training time so far, over all attempts"),
            column(
                "environments",
                _ENVIRONMENTS,
                "scored rollouts and mean reward and score by environment; empty if there is only one",
            ),
        ]
    ),
    "Rewards and behaviour over the steps of a reinforcement; means of no scored rollout are null.",
    required=False,
)


RL_VALIDATION = Table(
    "rl_validation",
    4,
    ("step", "environment", "domain"),
    pa.schema(
        [
            column("step", pa.int64(), "training step after which it was measured"),
            column("environment", pa.string(), "environment of the questions, or `all`"),
            column("domain", pa.string(), "domain of the questions, or `all`"),
            column("num_questions", pa.int64(), "held-out questions, answered greedily once each"),
            column("score", pa.float64(), "mean score, by the scorer of training, within [0, 1]", nullable=True),
            column("efficiency", pa.float64(), "mean of score divided by calls (by 1 without calls)", nullable=True),
            column("calls", pa.float64(), "mean tool calls that ran", nullable=True),
            column("length", pa.float64(), "mean tokens sampled by the policy", nullable=True),
            column("executed", pa.float64(), "share of calls without failure; null without calls", nullable=True),
            column(
                "web_misses", pa.float64(), "mean number of searches without an entry in the web record", nullable=True
            ),
            column("parts", PARTS, "mean of each part of the rewards by name"),
        ]
    ),
    "Validations on held-out questions during a reinforcement. Means are null if nothing was scored.",
    required=False,
)
