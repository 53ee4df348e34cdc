"""Define the Arrow schema and the version of every table that Treadle writes.

Free-form parts (segments, tool calls, metadata) are JSON text, so no schema is ever inferred from the first rows. All
columns are always present; values that can be missing are nullable. A change of columns or of their meaning raises the
table's version.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of table: its name in the run store, its columns, and the columns that identify a row."""

    kind: str
    version: int
    key: tuple[str, ...]
    schema: pa.Schema
    description: str
    required: bool = True
    """Whether a stage that produces it must write at least one row."""
    hidden: frozenset[str] = frozenset()
    """Columns that only readers who name them get; exports leave them out."""

    @property
    def visible(self) -> list[str]:
        """Columns that are not hidden, in their order."""
        return [name for name in self.schema.names if name not in self.hidden]


NULL_ITEMS = b"null_items"
"""Key in the metadata of a list column whose items may be null."""


def _field(name: str, type_: pa.DataType, doc: str, *, nullable: bool = False, null_items: bool = False) -> pa.Field:
    return pa.field(
        name, type_, nullable=nullable, metadata={"doc": doc, **({"null_items": "yes"} if null_items else {})}
    )


def _renamed(schema: pa.Schema, **docs: str) -> list[pa.Field]:
    """Return the columns of another table, with new descriptions for some of them."""
    return [
        _field(field.name, field.type, docs[field.name], nullable=field.nullable) if field.name in docs else field
        for field in schema
    ]


_STRINGS = pa.list_(pa.string())

QUESTIONS = Table(
    "questions",
    3,
    ("question_key",),
    pa.schema(
        [
            _field(
                "question_key", pa.string(), "16 hex digits: digest of question, answers, choices, payload and kind"
            ),
            _field("dataset", pa.string(), "data set that the question came from"),
            _field("domain", pa.string(), "math, qa, choice or task; decides the scorer"),
            _field("question", pa.string(), "what the agent is asked"),
            _field("answers", _STRINGS, "accepted gold answers; empty only for a task that needs none"),
            _field("choices", _STRINGS, "texts of the options A, B, ...; empty if not multiple choice"),
            _field("split", pa.string(), "train or heldout"),
            _field("source_file", pa.string(), "file name or hub id that the row was read from"),
            _field("source_row", pa.int64(), "1-based row in that file"),
            _field("meta", pa.string(), "JSON object: the row's other fields"),
            _field(
                "format",
                pa.string(),
                "multiple_choice, assertion, fill_in or open_ended, which decides the prompt; null for none of them",
                nullable=True,
            ),
            _field(
                "scorer",
                pa.string(),
                "math, qa, qa_characters, choice, workspace_tests or outcome, instead of the domain's; null for none",
                nullable=True,
            ),
            _field(
                "search",
                pa.string(),
                "local, web or both: where the published evaluation looks for answers; null if unknown",
                nullable=True,
            ),
            _field(
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
            _field("source_file", pa.string(), "file name or hub id"),
            _field("source_row", pa.int64(), "1-based row in that file; 0 for the whole file"),
            _field("dataset", pa.string(), "data set of the row"),
            _field("reason", pa.string(), "reason code, such as missing_field or near_duplicate"),
            _field("detail", pa.string(), "one sentence"),
            _field("raw", pa.string(), "the row as read, payload masked, cut to 2,000 characters"),
        ]
    ),
    "Rows that did not become questions, each with its reason.",
    required=False,
)

INDEXES = Table(
    "indexes",
    1,
    ("fingerprint",),
    pa.schema(
        [
            _field(
                "fingerprint", pa.string(), "64 hex digits: digest of everything that affects the answers of the index"
            ),
            _field("engine", pa.string(), "bm25, dense or hybrid"),
            _field("num_documents", pa.int64(), "documents, or passages if they are split"),
            _field("encoder", pa.string(), "name of the encoder; null without vectors", nullable=True),
            _field("dimension", pa.int64(), "length of its vectors", nullable=True),
            _field("corpus_sha256", _STRINGS, "content of the corpus files, in their order"),
            _field("identity", pa.string(), "JSON object behind the fingerprint: corpus, words, encoder, vectors"),
        ]
    ),
    "The search index of a run. Its files are kept in the cache of each machine.",
)

_JOB = _field(
    "job",
    pa.string(),
    "32 hex digits: digest of everything that it depends on; identifies the finished job; null if it was imported, "
    "or failed and was accepted",
    nullable=True,
)

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

_TOOLS = pa.list_(
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

_TURN_REWARDS = _field(
    "turn_rewards",
    pa.list_(pa.float64()),
    "reward of each turn from the environment, null for turns without one; empty if no turn has one",
    null_items=True,
)

ROLLOUTS = Table(
    "rollouts",
    5,
    ("rollout_key",),
    pa.schema(
        [
            _field("rollout_key", pa.string(), "16 hex digits: digest of question, model, sample and operator"),
            _field("question_key", pa.string(), "the question"),
            _field("dataset", pa.string(), "copied from the question"),
            _field("domain", pa.string(), "copied from the question"),
            _field("model", pa.string(), "name of the model in the configuration"),
            _field("sample_index", pa.int32(), "0 to K-1"),
            _field("operator", pa.string(), "operator that made the trajectory; `rollout` for a fresh one"),
            _field("parents", _STRINGS, "keys of the trajectories that it was made from"),
            _field("round", pa.int32(), "flywheel round; 0 for a fresh rollout"),
            _field("seed", pa.int64(), "seed of the rollout; turn t is sampled with a seed derived from it"),
            _field(
                "status",
                pa.string(),
                "how it ended: answered, finished (by the environment), no_answer, filtered, limit, max_turns, "
                "context_full, length, timeout, budget, or failed (infrastructure, accepted by the user)",
            ),
            _field("truncated", pa.bool_(), "whether it ended before its task did"),
            _field("error", pa.string(), "cause, for failed rollouts", nullable=True),
            _field(
                "first_messages",
                pa.string(),
                "JSON list of {role, content}: messages before the first turn, without the hint; null if the rollout "
                "failed",
                nullable=True,
            ),
            _field(
                "tool_schemas",
                pa.string(),
                "JSON list of {name, description, parameters}: the tools that the model was told of by their schemas, "
                "with added = true for those that came during the episode; [] without native calls",
            ),
            _field("text", pa.string(), "everything after the prompt: turns of the model, tool results, messages"),
            _field(
                "segments",
                pa.string(),
                "JSON list of {kind, text, start, end}; start and end index the ids of the sample",
            ),
            _field(
                "samples",
                _SAMPLES,
                "token sequences, one while the context is append-only: prompt_ids (as sampled from), "
                "training_prompt_ids (without the hint; null if there was none), ids after the prompt, per id its "
                "origin (0 system, 1 sampled, 2 model text re-encoded after a cut inside a token, no log-prob loss), "
                "number of ids before each turn, and spans with their role; in text mode all lists are empty",
            ),
            _TURN_REWARDS,
            _field(
                "reward",
                pa.float64(),
                "reward of the episode from the environment: its outcome's, else the sum of the turns'; null for none",
                nullable=True,
            ),
            _field(
                "outcome",
                pa.string(),
                "JSON object {reward, success, parts} that the environment gave for the episode; null for none",
                nullable=True,
            ),
            _field(
                "tool_calls",
                pa.string(),
                "JSON list of {tool, argument, status, turn, result_chars}, with a note if there is one",
            ),
            _field("num_turns", pa.int32(), "generation calls that made it"),
            _field("calls_requested", pa.int32(), "tool calls that the agent requested"),
            _field("calls_executed", pa.int32(), "tool calls that ran"),
            _field(
                "tools",
                _TOOLS,
                "these calls by tool, sorted by name, each name once; `(invalid)` stands for names that no tool can "
                "have; empty without calls",
            ),
            _field("failed_calls", pa.int32(), "calls with status error, timeout, invalid or empty"),
            _field("prompt_tokens", pa.int64(), "summed over its requests"),
            _field("completion_tokens", pa.int64(), "summed over its requests"),
            _field("environment_digest", pa.string(), "prompt, tags, tools and limits"),
            _field("tokenizer_digest", pa.string(), "tokenizer and chat template; empty in text mode"),
            _JOB,
        ]
    ),
    "Trajectories of an agent, nothing scored.",
)

ROLLOUT_TELEMETRY = Table(
    "rollout_telemetry",
    5,
    ("rollout_key",),
    pa.schema(
        [
            _field("rollout_key", pa.string(), "the rollout"),
            _field("attempt", pa.int32(), "attempt in which it was finished; an earlier one for a reused rollout"),
            _field("finished_at", pa.string(), "UTC, ISO 8601"),
            _field("seconds", pa.float64(), "wall time of the rollout in its last attempt"),
            _field("model_seconds", pa.float64(), "waiting for the model, over all attempts"),
            _field("tool_seconds", pa.float64(), "in tools, over all attempts"),
            _field(
                "seconds_by_tool",
                _TOOL_SECONDS,
                "calls that ran and their seconds by tool, as named in `tools` of the rollout; without calls before a "
                "restart",
            ),
            _field("num_requests", pa.int32(), "requests that were answered"),
            _field("num_retries", pa.int32(), "requests that were sent again"),
            _field("endpoint", pa.string(), "URL that sent the last answer"),
            _field("wasted_tokens", pa.int64(), "sampled beyond a cut"),
            _field(
                "summarizer_prompt_tokens",
                pa.int64(),
                "prompt tokens of the model that summarizes searches, over its calls",
            ),
            _field("summarizer_completion_tokens", pa.int64(), "tokens sampled by that model"),
            _field("num_restarts", pa.int32(), "times that it began again because its episode could not be resumed"),
            _field("voided_tokens", pa.int64(), "prompt and sampled tokens of the attempts before the last restart"),
            _field("odd_answers", pa.string(), "JSON object: kind of odd answer -> number of such answers"),
        ]
    ),
    "Volatile facts about rollouts, outside any digest.",
    required=False,
)

POOLS = Table(
    "pools",
    5,
    ("rollout_key",),
    pa.schema(
        [
            *_renamed(
                ROLLOUTS.schema.remove(ROLLOUTS.schema.get_field_index(_JOB.name)),
                rollout_key="16 hex digits: digest of question, model, round, operator and parent",
                sample_index="position in the question's pool, from 0",
                operator="operator that made the trajectory: initial, rerollout, redundant_mod, global_refine, "
                "self_correct, hint_step, hint_tail, reflect, or one of the user's",
                parents="key of the trajectory that was edited or followed; empty for initial ones",
                round="flywheel round that made it; 0 for initial ones",
                prompt_tokens="of the policy, summed over its requests; a prefix costs nothing again",
                completion_tokens="sampled by the policy",
            ),
            _field("prediction", pa.string(), "extracted answer; empty if there is none"),
            _field(
                "correct",
                pa.bool_(),
                "the judge's verdict; null if it is unknown, which never counts as right",
                nullable=True,
            ),
            _field("score", pa.float64(), "1 or 0 for math and choice, F1 for qa; null if unknown", nullable=True),
            _field(
                "judge",
                pa.string(),
                "JSON object {method, raw, error}: deciding method, replies of the judge model, error",
            ),
            _field("edit_step", pa.int32(), "1-based step of the parent that was edited or followed", nullable=True),
            _field("edit_text", pa.string(), "the hint, the analysis or the new step; empty if there is none"),
            _field("prompts", pa.string(), "JSON object: prompt used -> its digest"),
            _field("models", pa.string(), "JSON object: role -> model that had it"),
            _field("usage", pa.string(), "JSON object: role -> {calls, prompt_tokens, completion_tokens}"),
        ]
    ),
    "Judged trajectories of the flywheel: initial rollouts, and those that operators made from them.",
)

POOL_QUESTIONS = Table(
    "pool_questions",
    2,
    ("question_key",),
    pa.schema(
        [
            _field("question_key", pa.string(), "the question"),
            _field("dataset", pa.string(), "copied from the question"),
            _field("domain", pa.string(), "copied from the question"),
            _field(
                "status",
                pa.string(),
                "ok; partial: an operator failed; timeout: time limit reached; failed: infrastructure, accepted",
            ),
            _field("error", pa.string(), "cause, if the status is not ok", nullable=True),
            _field("num_rounds", pa.int32(), "finished rounds"),
            _field("num_trajectories", pa.int32(), "in its pool"),
            _field("num_correct", pa.int32(), "of these, with a right answer"),
            _field("initial_correct", pa.bool_(), "whether an initial rollout was right"),
            _field(
                "usage", pa.string(), "JSON object: role -> {calls, prompt_tokens, completion_tokens}, all together"
            ),
            _JOB,
        ]
    ),
    "Result of the flywheel per question.",
)

POOL_EVENTS = Table(
    "pool_events",
    1,
    ("question_key", "event_index"),
    pa.schema(
        [
            _field("question_key", pa.string(), "the question"),
            _field("event_index", pa.int32(), "from 0, in the order of rounds, parents and operators"),
            _field("round", pa.int32(), "flywheel round"),
            _field("operator", pa.string(), "operator that was applied, locate_flaw, or initial"),
            _field("parent", pa.string(), "trajectory that it was applied to; empty for initial"),
            _field("parent_correct", pa.bool_(), "whether the parent was right"),
            _field("outcome", pa.string(), "produced, found, duplicate, rejected or failed"),
            _field("reason", pa.string(), "why it was rejected or failed; empty if it produced a trajectory"),
            _field("reply", pa.string(), "the rejected reply of the model, unchanged"),
            _field("error", pa.string(), "what failed", nullable=True),
            _field(
                "rollout_key", pa.string(), "the trajectory that it made, or the one that it duplicates", nullable=True
            ),
            _field("usage", pa.string(), "JSON object: role -> {calls, prompt_tokens, completion_tokens}"),
        ]
    ),
    "Every application of an operator with its result, and initial rollouts that gave no trajectory.",
    required=False,
)

SFT_ROWS = Table(
    "sft_rows",
    3,
    ("rollout_key",),
    pa.schema(
        [
            _field("rollout_key", pa.string(), "the trajectory"),
            _field("question_key", pa.string(), "the question"),
            _field("dataset", pa.string(), "copied from the trajectory"),
            _field("domain", pa.string(), "copied from the trajectory"),
            _field("model", pa.string(), "copied from the trajectory"),
            _field("operator", pa.string(), "operator that made the trajectory"),
            _field("parents", _STRINGS, "copied from the trajectory"),
            _field("round", pa.int32(), "flywheel round; 0 for initial rollouts"),
            _field("repaired", pa.bool_(), "whether thought markers were added or removed"),
            _field(
                "messages",
                pa.string(),
                "JSON list of {role, content}: system (if there is one) and user messages before the first turn, then "
                "each turn of the model as `assistant`, without its end, and between two turns the messages of the "
                "environment as `user`, `tool` or `system`; the last one is a turn. A turn may have `reasoning` "
                "(text), `tool_calls` (native calls {id, name, arguments}, with a JSON object as text; content is the "
                "text next to them), and `results` ([start, end] of tool results inside its content, in characters). A "
                "`tool` message has the `tool_call_id` of the call that it answers",
            ),
            _field(
                "tool_schemas",
                pa.string(),
                "JSON list of {name, description, parameters}: the tools that can be called natively; [] for none",
            ),
            _field(
                "input_ids",
                pa.list_(pa.int32()),
                "prompt without a hint, turns and what is between them, end of the last turn; empty in text mode",
            ),
            _field("labels", pa.list_(pa.int32()), "the same, -100 if there is no loss; empty in text mode"),
            _field("num_tokens", pa.int32(), "length of input_ids"),
            _field("num_prompt_tokens", pa.int32(), "of these, before the first turn"),
            _field("num_result_tokens", pa.int32(), "of these, in tool results inside a turn"),
            _field(
                "num_message_tokens",
                pa.int32(),
                "of these, in messages of the environment and in what the chat template puts around turns",
            ),
            _field("num_target_tokens", pa.int32(), "labels that are not -100"),
            _field("calls_requested", pa.int32(), "tool calls that the agent requested"),
            _field("calls_executed", pa.int32(), "tool calls that ran"),
            _field("tools", _TOOLS, "calls by tool, as in `rollouts`"),
            _field("environment_digest", pa.string(), "prompt, tags, tools and limits"),
            _field("tokenizer_digest", pa.string(), "tokenizer and chat template; empty in text mode"),
        ]
    ),
    "Fine-tuning rows: accepted trajectories, shuffled, with the token ids of prompt and output.",
)

SFT_REJECTIONS = Table(
    "sft_rejections",
    1,
    ("rollout_key",),
    pa.schema(
        [
            _field("rollout_key", pa.string(), "the trajectory"),
            _field("question_key", pa.string(), "the question"),
            _field("dataset", pa.string(), "copied from the trajectory"),
            _field("domain", pa.string(), "copied from the trajectory"),
            _field("operator", pa.string(), "operator that made the trajectory"),
            _field("round", pa.int32(), "flywheel round"),
            _field("status", pa.string(), "how the rollout ended"),
            _field("calls_requested", pa.int32(), "tool calls that the agent requested"),
            _field("num_tokens", pa.int32(), "tokens that the row would have; 0 in text mode"),
            _field("reason", pa.string(), "code of the first rule that it breaks, or why it was not selected"),
            _field("reasons", _STRINGS, "codes of all rules that it breaks"),
        ]
    ),
    "Trajectories that did not become fine-tuning rows, each with its reasons.",
    required=False,
)

CHECKPOINTS = Table(
    "checkpoint",
    2,
    ("name",),
    pa.schema(
        [
            _field("name", pa.string(), "address of the instance that made it, such as 1/sft"),
            _field("base_model", pa.string(), "model that training began with: `embedded`, folder, hub id or address"),
            _field(
                "base_digest",
                pa.string(),
                "hex digest of that model's files; of a hub id its commit in `sft`, else empty",
            ),
            _field("finetuning_type", pa.string(), "full, or lora merged into the base"),
            _field("num_steps", pa.int64(), "steps of the training: optimizer steps, or batches of rollouts in `rl`"),
            _field("num_epochs", pa.float64(), "passes over the rows"),
            _field("num_rows", pa.int64(), "rows trained on"),
            _field(
                "num_target_tokens",
                pa.int64(),
                "tokens of one epoch that count in the loss; null in `rl`, which samples its own",
                nullable=True,
            ),
            _field("first_loss", pa.float64(), "loss at the first logged step; null if none is logged", nullable=True),
            _field("last_loss", pa.float64(), "loss at the last logged step; null if none is logged", nullable=True),
            _field("tokenizer_digest", pa.string(), "tokenizer and chat template, as in the rows"),
            _field("seed", pa.int64(), "of training"),
            _field("engine", pa.string(), "engine that trained it"),
            _field("versions", pa.string(), "JSON object: package -> version in the engine's environment"),
            _field("chosen_step", pa.int64(), "step of the exported state; null in `sft`", nullable=True),
            _field("first_reward", pa.float64(), "mean reward at the first step; null in `sft`", nullable=True),
            _field("last_reward", pa.float64(), "mean reward at the last step; null in `sft`", nullable=True),
            _field(
                "validation_correctness",
                pa.float64(),
                "mean correctness on held-out questions at the chosen step; null without validation",
                nullable=True,
            ),
        ]
    ),
    "A trained model; its files are in the folder `model` next to this table.",
)

MODEL_FOLDER = "model"
"""Folder of a checkpoint's artifact that holds the model in Hugging Face format."""

TRAINING_LOG = Table(
    "training_log",
    1,
    ("step",),
    pa.schema(
        [
            _field("step", pa.int64(), "optimizer step"),
            _field("epoch", pa.float64(), "passes over the rows so far"),
            _field("loss", pa.float64(), "mean since the last logged step"),
            _field("learning_rate", pa.float64(), "at this step"),
            _field("grad_norm", pa.float64(), "before clipping", nullable=True),
            _field("seconds", pa.float64(), "since training began in this attempt"),
        ]
    ),
    "Loss and learning rate over the steps of a training.",
    required=False,
)

RL_ROLLOUTS = Table(
    "rl_rollouts",
    2,
    ("step", "group", "session"),
    pa.schema(
        [
            _field("step", pa.int64(), "step of the training, from 1"),
            _field("group", pa.string(), "id of the group that the sampler gave it, unique in the step"),
            _field("session", pa.int32(), "place in the group, from 0"),
            _field("question_key", pa.string(), "the question"),
            _field("dataset", pa.string(), "copied from the row"),
            _field("domain", pa.string(), "copied from the row"),
            _field("input", pa.string(), "the question as shown to the agent"),
            _field("output", pa.string(), "what follows it, tool results and messages of the environment included"),
            _field("segments", pa.string(), "the same as JSON list of {kind, text, start, end}, as in `rollouts`"),
            _field("num_turns", pa.int32(), "number of turns of the model"),
            _field(
                "reward",
                pa.float64(),
                "reward; null, like all its parts, if infrastructure failed and the rollout was not scored",
                nullable=True,
            ),
            _TURN_REWARDS,
            _field(
                "correctness",
                pa.float64(),
                "1 or 0 for math and choice, F1 for qa, the environment's reward within [0, 1] for a task",
                nullable=True,
            ),
            _field("f_tool", pa.float64(), "factor for calls", nullable=True),
            _field("f_len", pa.float64(), "factor for length", nullable=True),
            _field("f_format", pa.float64(), "0, or minus the penalty if the format is broken", nullable=True),
            _field(
                "format_reason", pa.string(), "codes of the broken rules, separated by spaces; empty if there are none"
            ),
            _field("prediction", pa.string(), "extracted answer; empty if there is none"),
            _field("tool_calls", pa.int32(), "tool calls that ran"),
            _field("tool_failures", pa.int32(), "of these, those that failed"),
            _field("model_tokens", pa.int32(), "tokens sampled by the policy"),
            _field("total_tokens", pa.int32(), "sampled tokens and tokens of tool results"),
            _field("tool_mean", pa.float64(), "mean calls of the group", nullable=True),
            _field("length_mean", pa.float64(), "mean length of the group", nullable=True),
            _field("length_std", pa.float64(), "its population standard deviation", nullable=True),
            _field("finish", pa.string(), "how the rollout ended, as in `rollouts`"),
            _field("truncated", pa.bool_(), "whether it ended before its task did"),
            _field("branch_parent", pa.int32(), "session that it branched from; null if there is none", nullable=True),
            _field("branch_depth", pa.int32(), "number of branches before it; 0 if it started from the question"),
            _field("seed", pa.int64(), "seed of the rollout"),
        ]
    ),
    "Rollouts of the reinforcement of a policy, with all parts of their rewards.",
    required=False,
)

RL_LOG = Table(
    "rl_log",
    3,
    ("step",),
    pa.schema(
        [
            _field("step", pa.int64(), "step of the training, from 1"),
            _field("reward", pa.float64(), "mean reward; null if no rollout has one", nullable=True),
            _field("reward_std", pa.float64(), "mean over groups of the standard deviation within", nullable=True),
            _field("correctness", pa.float64(), "mean correctness", nullable=True),
            _field("format_ok", pa.float64(), "share of rollouts in good format", nullable=True),
            _field("answered", pa.float64(), "share of rollouts that ended with an answer", nullable=True),
            _field("cut_off", pa.float64(), "share that reached the token limit", nullable=True),
            _field("timeout", pa.float64(), "share whose tool time was used up", nullable=True),
            _field("calls", pa.float64(), "mean tool calls that ran", nullable=True),
            _field("tool_failures", pa.float64(), "mean failed ones", nullable=True),
            _field(
                "web_misses", pa.float64(), "mean number of searches without an entry in the web record", nullable=True
            ),
            _field("length", pa.float64(), "mean tokens sampled by the policy", nullable=True),
            _field("f_tool", pa.float64(), "mean factor for calls", nullable=True),
            _field("f_len", pa.float64(), "mean factor for length", nullable=True),
            _field("sigma_tool", pa.float64(), "value at this step", nullable=True),
            _field("sigma_length", pa.float64(), "value at this step", nullable=True),
            _field("num_rollouts", pa.int64(), "rollouts of the step"),
            _field("num_groups", pa.int64(), "groups of the step"),
            _field("num_equal_groups", pa.int64(), "groups with equal rewards, which give no gradient"),
            _field("loss", pa.float64(), "policy loss; null if none is logged", nullable=True),
            _field("entropy", pa.float64(), "mean entropy of the policy; null if none is logged", nullable=True),
            _field("learning_rate", pa.float64(), "at this step; null if none is logged", nullable=True),
            _field("grad_norm", pa.float64(), "before clipping; null if none is logged", nullable=True),
            _field("seconds", pa.float64(), "training time so far, over all attempts"),
        ]
    ),
    "Rewards and behaviour over the steps of a reinforcement; means of no scored rollout are null.",
    required=False,
)

RL_VALIDATION = Table(
    "rl_validation",
    2,
    ("step", "domain"),
    pa.schema(
        [
            _field("step", pa.int64(), "training step after which it was measured"),
            _field("domain", pa.string(), "math, qa, choice, or `all`"),
            _field("num_questions", pa.int64(), "held-out questions, answered greedily once each"),
            _field("correctness", pa.float64(), "mean correctness, by the scorer of training", nullable=True),
            _field("format_ok", pa.float64(), "share in good format", nullable=True),
            _field(
                "efficiency", pa.float64(), "mean of correctness divided by calls (by 1 without calls)", nullable=True
            ),
            _field("calls", pa.float64(), "mean tool calls that ran", nullable=True),
            _field("length", pa.float64(), "mean tokens sampled by the policy", nullable=True),
            _field("executed", pa.float64(), "share of calls without failure; null without calls", nullable=True),
            _field(
                "web_misses", pa.float64(), "mean number of searches without an entry in the web record", nullable=True
            ),
        ]
    ),
    "Validations on held-out questions during a reinforcement. Means are null if nothing was scored.",
    required=False,
)

SCORES = Table(
    "scores",
    4,
    ("rollout_key",),
    pa.schema(
        [
            _field("rollout_key", pa.string(), "the rollout"),
            _field("question_key", pa.string(), "the question"),
            _field("dataset", pa.string(), "copied from the rollout"),
            _field("domain", pa.string(), "copied from the rollout"),
            _field("model", pa.string(), "copied from the rollout"),
            _field("sample_index", pa.int32(), "copied from the rollout"),
            _field("status", pa.string(), "copied from the rollout"),
            _field("prediction", pa.string(), "extracted answer; empty if there is none"),
            _field("is_valid_answer", pa.bool_(), "answered, with a non-empty prediction"),
            _field(
                "correct",
                pa.bool_(),
                "the verdict of the domain's scorer; null if it failed",
                nullable=True,
            ),
            _field(
                "score",
                pa.float64(),
                "P: 1 or 0 for math and choice, F1 for qa; the reward if the environment scores; null if the scorer "
                "failed",
                nullable=True,
            ),
            _field("em", pa.float64(), "exact match after normalisation"),
            _field("acc", pa.float64(), "a gold answer occurs in the prediction, at token boundaries"),
            _field("f1", pa.float64(), "token F1, best over the gold answers"),
            _field("f1_legacy", pa.float64(), "the same with punctuation kept, as published for ET-Agent"),
            _field(
                "scorer", pa.string(), "deciding rule, such as status, choice, qa_f1, math_text, math_symbolic or judge"
            ),
            _field("error", pa.string(), "why there is no verdict", nullable=True),
            _field(
                "efficiency",
                pa.float64(),
                "score divided by requested calls (by 1 without calls); null if the score is null",
                nullable=True,
            ),
            _field("truncated", pa.bool_(), "copied from the rollout"),
            _field("num_turns", pa.int32(), "copied from the rollout"),
            _field("calls_requested", pa.int32(), "copied from the rollout"),
            _field("calls_executed", pa.int32(), "copied from the rollout"),
            _field("tools", _TOOLS, "copied from the rollout"),
            _field("failed_calls", pa.int32(), "copied from the rollout"),
            _field("prompt_tokens", pa.int64(), "copied from the rollout"),
            _field("completion_tokens", pa.int64(), "copied from the rollout"),
            _field(
                "reasoning_tokens",
                pa.int32(),
                "L: tokens without tool results; null without ids and without a tokenizer",
                nullable=True,
            ),
            _field("output_chars", pa.int32(), "characters without tool results"),
            _field(
                "judge_status",
                pa.string(),
                "null if no judge was asked about the answer; parsed: judges decided; fallback_rule: a tie, or none "
                "could be asked, so the rule decided; failed: no reply could be parsed",
                nullable=True,
            ),
            _field(
                "judges",
                pa.string(),
                "JSON object: judge asked about the answer -> {verdict, status, raw}, statuses as in `judge_status`",
            ),
            _field(
                "votes_yes",
                pa.int32(),
                "votes that there is a redundant or ineffective call; 0 without calls; null without votes",
                nullable=True,
            ),
            _field("votes_no", pa.int32(), "votes that there is none", nullable=True),
            _field("votes_abstained", pa.int32(), "replies without a vote", nullable=True),
        ]
    ),
    "One verdict per rollout.",
)

JUDGEMENTS = Table(
    "judgements",
    1,
    ("judgement_key",),
    pa.schema(
        [
            _field(
                "judgement_key",
                pa.string(),
                "32 hex digits: digest of judge, prompts, and everything that it was asked about",
            ),
            _field("kind", pa.string(), "correctness: of an answer; redundancy: of the calls of a trajectory"),
            _field("judge", pa.string(), "name of the model in the configuration"),
            _field("question_key", pa.string(), "the question"),
            _field("rollout_key", pa.string(), "the trajectory, or the first one with this answer"),
            _field("prediction", pa.string(), "the answer; empty for votes on calls"),
            _field("status", pa.string(), "parsed, or failed: no reply could be parsed"),
            _field("correct", pa.bool_(), "the verdict on the answer; null without one", nullable=True),
            _field("votes_yes", pa.int32(), "votes that there is a wasted call; null for answers", nullable=True),
            _field("votes_no", pa.int32(), "votes that there is none", nullable=True),
            _field("votes_abstained", pa.int32(), "replies without a vote", nullable=True),
            _field("replies", _STRINGS, "replies of the model, unchanged"),
            _field("error", pa.string(), "why there is no verdict, or fewer votes than wanted", nullable=True),
            _field("prompt_tokens", pa.int64(), "summed over its requests"),
            _field("completion_tokens", pa.int64(), "summed over its requests"),
        ]
    ),
    "Judgements of answers and trajectories by judge models, one each.",
    required=False,
)

_PROMPT = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
_REWARD_MODEL = pa.struct([("ground_truth", _STRINGS), ("style", pa.string())])
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
        ("choices", _STRINGS),
    ]
)

RL_ROWS = Table(
    "rl_rows",
    2,
    ("question_key",),
    pa.schema(
        [
            _field("data_source", pa.string(), "math_effi_rl, qa_effi_rl or choice_effi_rl: selects the reward"),
            _field(
                "prompt", _PROMPT, "system message if the environment has one, and the question as shown to the agent"
            ),
            _field("ability", pa.string(), "math, qa or choice"),
            _field("reward_model", _REWARD_MODEL, "accepted gold answers; style is always `rule`"),
            _field(
                "extra_info",
                _EXTRA_INFO,
                "for trainers of verl's kind: index (unique, in the order of the selection, before the shuffle), the "
                "question without options, split, id, source, stage (the phase), objectives, rank, options",
            ),
            _field("question_key", pa.string(), "the question"),
            _field("dataset", pa.string(), "copied from the question"),
            _field("domain", pa.string(), "copied from the question"),
            _field("phase", pa.int32(), "phase of the curriculum that it was selected for"),
            _field("model", pa.string(), "policy whose rollouts were used, by its name in the rollouts"),
            _field("parents", _STRINGS, "keys of the rollouts that were used, in their order"),
            _field("correctness", pa.list_(pa.float64()), "their scores: 0 or 1 for math and choice, F1 for qa"),
            _field("calls", pa.list_(pa.int32()), "their executed tool calls"),
            _field("num_unusable", pa.int32(), "further rollouts, lost to infrastructure or without a verdict"),
            _field("score_tool", pa.float64(), "population standard deviation of `calls`"),
            _field("score_corr", pa.float64(), "population standard deviation of `correctness`"),
            _field("rank", pa.int32(), "front of the non-dominated sort, 0 the first; within a domain under quotas"),
            _field("distance", pa.float64(), "crowding distance in its front; null at the boundary", nullable=True),
            _field("is_boundary", pa.bool_(), "at an end of its front, where the distance is infinite"),
            _field("environment_digest", pa.string(), "prompt, tags, tools and limits of the rollouts"),
            _field("format", pa.string(), "copied from the question", nullable=True),
            _field("scorer", pa.string(), "copied from the question", nullable=True),
        ]
    ),
    "Questions chosen for reinforcement learning, shuffled; the first five columns are those of verl's parquet files.",
)

RL_REJECTIONS = Table(
    "rl_rejections",
    1,
    ("question_key",),
    pa.schema(
        [
            _field("question_key", pa.string(), "the question"),
            _field("dataset", pa.string(), "copied from the question"),
            _field("domain", pa.string(), "copied from the question"),
            _field("reason", pa.string(), "code of the first filter that it did not pass, over_quota or over_limit"),
            _field("num_rollouts", pa.int32(), "all its rollouts"),
            _field("num_usable", pa.int32(), "of these, finished and with a verdict"),
            _field("mean_correctness", pa.float64(), "of the usable ones; null without any", nullable=True),
            _field("score_tool", pa.float64(), "standard deviation of executed calls; null as above", nullable=True),
            _field("score_corr", pa.float64(), "standard deviation of correctness; null as above", nullable=True),
            _field("rank", pa.int32(), "its front; null if it was filtered out before ranking", nullable=True),
            _field("distance", pa.float64(), "null likewise, and at the boundary of a front", nullable=True),
        ]
    ),
    "Questions with rollouts that were not chosen for reinforcement learning, each with its reason.",
    required=False,
)

SUMMARY = Table(
    "summary",
    3,
    ("model", "dataset", "figure"),
    pa.schema(
        [
            _field("model", pa.string(), "model of the rollouts"),
            _field(
                "dataset",
                pa.string(),
                "data set; or an unweighted mean over those of the headline, or over all if there are none of "
                "these: all, math, knowledge; or over all if that is another: every",
            ),
            _field(
                "figure",
                pa.string(),
                "one of docs/behaviour/metrics.md, such as calls:<tool>; pass@k; or a number of rollouts: num_failed, "
                "num_valid, status:..., scorer:..., judge_status:..., tools_used:..., votes:..., or "
                "num_judged_jointly, judge_agreement, judge_kappa",
            ),
            _field("value", pa.float64(), "the figure; null if no rollout has it", nullable=True),
            _field("low", pa.float64(), "95 % interval, lower end; null if there is none", nullable=True),
            _field("high", pa.float64(), "95 % interval, upper end; null if there is none", nullable=True),
            _field(
                "method",
                pa.string(),
                "how the interval was made: wilson, clustered, bootstrap, normal, constant, unknown; combined for "
                "means over data sets; null for numbers of rollouts",
                nullable=True,
            ),
            _field("num_rollouts", pa.int64(), "rows scored"),
            _field("num_questions", pa.int64(), "different questions"),
            _field("num_undecided", pa.int64(), "rows without this figure"),
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
            _field("first", pa.string(), "model"),
            _field("second", pa.string(), "model that it is compared with"),
            _field("dataset", pa.string(), "data set, or a mean over data sets, as in `summary`"),
            _field("figure", pa.string(), "figure that is compared"),
            _field("num_questions", pa.int64(), "questions for which both have the figure"),
            _field("num_dropped", pa.int64(), "further questions, for which one or both lack it"),
            _field(
                "num_dropped_rollouts",
                pa.int64(),
                "rollouts of both that were left out, including those of these questions",
            ),
            _field("first_value", pa.float64(), "mean over the questions, each by the mean of its rollouts"),
            _field("second_value", pa.float64(), "the same of the second"),
            _field("difference", pa.float64(), "second minus first"),
            _field("low", pa.float64(), "its 95 % interval, lower end; null if there is none", nullable=True),
            _field("high", pa.float64(), "upper end", nullable=True),
            _field("method", pa.string(), "how the interval was made"),
            _field("p_value", pa.float64(), "two-sided, of this row alone"),
            _field("p_adjusted", pa.float64(), "the same by Holm for all rows of the table"),
            _field("test", pa.string(), "mcnemar, permutation_exact or permutation"),
            _field("gained", _STRINGS, "keys of questions that only the second gets mostly right; for `score`"),
            _field("lost", _STRINGS, "keys of questions that only the first gets mostly right; for `score`"),
            _field(
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

WEB_RECORD = Table(
    "web_record",
    1,
    ("key",),
    pa.schema(
        [
            _field("key", pa.string(), "32 hex digits: digest of query and language, or of the address of a page"),
            _field("kind", pa.string(), "search or page"),
            _field("request", pa.string(), "the query, or the address in normal form"),
            _field("language", pa.string(), "en or zh: of a search", nullable=True),
            _field("provider", pa.string(), "provider of a search", nullable=True),
            _field("loose_key", pa.string(), "digest of the words alone: of an imported search", nullable=True),
            _field("hits", pa.string(), "JSON list of at most 20 hits: of a search", nullable=True),
            _field(
                "text",
                pa.string(),
                "text of a page, or of a search that was recorded as text; cut at 50,000 characters",
                nullable=True,
            ),
            _field("final_url", pa.string(), "URL of a page after redirects", nullable=True),
            _field("title", pa.string(), "of a page", nullable=True),
            _field("media_type", pa.string(), "of a page", nullable=True),
            _field(
                "failure", pa.string(), "reason code if a page could not be read or a query was refused", nullable=True
            ),
            _field("detail", pa.string(), "the same in words", nullable=True),
            _field("reader", pa.string(), "program that extracted the text of a page, with its version", nullable=True),
            _field("recorded_at", pa.string(), "UTC, ISO 8601"),
        ]
    ),
    "Recorded web searches and pages, sorted by key.",
    required=False,
)

TABLES: dict[str, Table] = {
    table.kind: table
    for table in (
        QUESTIONS,
        QUARANTINE,
        INDEXES,
        ROLLOUTS,
        ROLLOUT_TELEMETRY,
        POOLS,
        POOL_QUESTIONS,
        POOL_EVENTS,
        SFT_ROWS,
        SFT_REJECTIONS,
        CHECKPOINTS,
        TRAINING_LOG,
        RL_ROLLOUTS,
        RL_LOG,
        RL_VALIDATION,
        SCORES,
        JUDGEMENTS,
        RL_ROWS,
        RL_REJECTIONS,
        SUMMARY,
        COMPARISONS,
        WEB_RECORD,
    )
}
