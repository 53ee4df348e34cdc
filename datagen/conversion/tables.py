"""Tables of the stage `conversion`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import JOB, STRINGS, Table, column

CONVERSIONS = Table(
    "conversion",
    1,
    ("rollout_key",),
    pa.schema(
        [
            column("rollout_key", pa.string(), "the rewritten trajectory"),
            column("source_key", pa.string(), "the trajectory that it was made from"),
            column("question_key", pa.string(), "the question"),
            column("dataset", pa.string(), "copied from the source"),
            column("domain", pa.string(), "copied from the source"),
            column("model", pa.string(), "name of the teacher in the configuration"),
            column("source_model", pa.string(), "name of the model that wrote the source; empty if it is unknown"),
            column(
                "status",
                pa.string(),
                "converted; rejected: the rewrite breaks a rule; not_asked: the source does; left_out: "
                "there are too many of its kind; failed: infrastructure, accepted",
            ),
            column("reason", pa.string(), "code of the first rule that is broken; empty if it was converted"),
            column("reasons", STRINGS, "codes of all rules that are broken"),
            column("detail", pa.string(), "what exactly the first one is about"),
            column("first_messages", pa.string(), "JSON list of {role, content}: messages before the rewritten turn"),
            column("text", pa.string(), "rewritten trajectory with its observations; empty unless it was accepted"),
            column("tag", pa.string(), "tag around observations in `text`"),
            column("plan", pa.string(), "JSON list of {id, description, depends_on}; [] unless it was accepted"),
            column("num_searches", pa.int32(), "queries of the rewrite"),
            column("num_batches", pa.int32(), "batches of queries"),
            column("widest", pa.int32(), "queries in the largest batch"),
            column("num_tokens", pa.int32(), "tokens of the rewrite; 0 without a tokenizer"),
            column("reply", pa.string(), "last reply of the teacher, unchanged; empty without one"),
            column("num_attempts", pa.int32(), "rewrites that the teacher was asked for"),
            column("prompt_tokens", pa.int64(), "of the teacher, over all attempts"),
            column("completion_tokens", pa.int64(), "sampled by the teacher, over all attempts"),
            column("source_messages", pa.string(), "JSON list of {role, content}: messages before the source's turn"),
            column("source_text", pa.string(), "source with its observations; empty if it cannot be read"),
            column("source_tag", pa.string(), "tag around observations in `source_text`"),
            JOB,
        ]
    ),
    "Sequential trajectories with their rewrites as plans of parallel calls, each refusal with its reason.",
)
