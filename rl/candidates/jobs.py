"""Define the jobs of the stage `candidates`: one per turn of the model in the selected rollouts."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.jobs.keys import job_key, shared_digest
from treadle.core.config import digest_json
from treadle.core.runs.stage import Rows
from treadle.core.store.buckets import draw
from treadle.rl.candidates.settings import CandidatesSettings
from treadle.rl.preferences.conversations import conversation_before
from treadle.rl.preferences.critic_prompts import train_questions
from treadle.rl.preferences.token_spans import only_sample, starts_of_turns

_COPIED = (
    "rollout_key", "question_key", "dataset", "environment", "first_messages", "tool_schemas", "tokenizer_digest",
)  # fmt: skip
_READ = (*_COPIED, "segments", "samples", "environment_digest")


@dataclass(frozen=True, slots=True)
class TurnJob:
    """One turn whose alternatives are sampled.

    Attributes:
        key: Key of the job, under which the journal stores its completions.
        head: Columns of `candidates` that are the same in the rows of all alternatives.
    """

    key: str
    head: Mapping[str, Any]


class TurnJobs:
    """Iterable of the turns of the selected rollouts; each loop over it reads the tables again."""

    def __init__(self, settings: CandidatesSettings, inputs: Mapping[str, tuple[Rows, ...]]) -> None:
        self._settings = settings
        self._rollouts = inputs["rollouts"]
        self._train = train_questions(inputs["questions"])
        self._shared = shared_digest(settings, inputs)
        self.selected = self._select()
        """Keys of the selected rollouts."""
        self.left_out: Counter[str] = Counter()
        """Reason -> number of selected rollouts whose turns cannot be used; complete after a loop over all jobs."""

    def _select(self) -> frozenset[str]:
        rows = (row for table in self._rollouts for row in table.rows(("rollout_key", "question_key")))
        keys = [row["rollout_key"] for row in rows if row["question_key"] in self._train]
        count = max(int(len(keys) * self._settings.options.data_fraction), min(len(keys), 1))
        seed = self._settings.seed
        return frozenset(heapq.nsmallest(count, keys, key=lambda key: (draw(seed, "candidates", key), key)))

    def __iter__(self) -> Iterator[TurnJob]:
        self.left_out.clear()
        for table in self._rollouts:
            for row in table.rows(_READ):
                if row["rollout_key"] in self.selected:
                    yield from self._of_rollout(row)

    def _of_rollout(self, row: Mapping[str, Any]) -> Iterator[TurnJob]:
        sample, why = only_sample(row)
        if sample is None:
            self.left_out[why] += 1
            return
        prompt = sample.prompt_ids_for_training
        messages, segments = orjson.loads(row["first_messages"]), orjson.loads(row["segments"])
        for start in starts_of_turns(sample):
            turn = sample.turn_starts.index(start)
            turn_key = digest_json([row["rollout_key"], turn])[:16]
            ids = [*prompt, *sample.ids[:start]]
            head = {
                **{name: row[name] for name in _COPIED},
                "turn_key": turn_key,
                "turn": turn,
                "messages": orjson.dumps(conversation_before(messages, segments, start)).decode(),
                "prompt_ids": ids,
                "num_first_ids": len(prompt),
            }
            yield TurnJob(job_key(self._shared, turn_key, ids, row["environment_digest"]), head)
