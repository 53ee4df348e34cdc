"""Hold a finished rollout: how it ended, its text in segments, its token sequences, calls, rewards and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treadle.agent.contract import CallRecord, Outcome
from treadle.agent.dialects.base import FRAME, Dialect, Segment
from treadle.agent.prefix import Prefix, cut
from treadle.agent.token_ids import Codec
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.transcript import Transcript
from treadle.core.answers.extraction import SYSTEM_KINDS

STATUSES = (
    "answered",
    "finished",
    "no_answer",
    "filtered",
    "limit",
    "max_turns",
    "context_full",
    "length",
    "timeout",
    "budget",
    "failed",
)
"""Statuses of a rollout. `finished`: the environment ended it. `failed` is set by the stage, for pending rollouts that
the user accepts as lost."""

TRUNCATED_STATUSES = frozenset({"max_turns", "context_full", "length", "timeout", "budget"})
"""Statuses of rollouts that ended before their task did."""

MODEL_ROLE = "assistant"
"""Role of the spans that the model wrote."""


@dataclass(slots=True)
class TurnUsage:
    """Cost of a turn: its request, and the calls that the environment ran in reaction to it."""

    prompt_tokens: int
    completion_tokens: int
    model_seconds: float
    tool_seconds: float = 0.0


@dataclass(slots=True)
class Usage:
    """Cost of a rollout. All fields after `wasted_tokens` may differ when the same rollout is run again.

    `notes` counts oddities in answers by kind. `turns` has an item for each request of the rollout itself, but none for
    its prefix. `voided_tokens` are prompt and sampled tokens of earlier attempts, from before a restart.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    num_requests: int = 0
    num_retries: int = 0
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    endpoint: str = ""
    num_restarts: int = 0
    voided_tokens: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    turns: list[TurnUsage] = field(default_factory=list)


@dataclass(slots=True)
class Sample:
    """One token sequence that a rollout consists of, ready for training; without token ids all lists are empty.

    Attributes:
        prompt_ids: Ids before the first turn of the model, exactly as the model got them; after a trim of the context,
            with the earlier segments that stayed.
        ids: Ids after them: turns of the model, results, messages and frames.
        origins: Origin of each of `ids`; see `treadle.agent.token_ids`.
        turn_starts: Number of `ids` before each turn of the model.
        training_prompt_ids: The prompt without its hint; None if it had none.
    """

    prompt_ids: list[int]
    ids: list[int]
    origins: list[int]
    turn_starts: list[int] = field(default_factory=list)
    training_prompt_ids: list[int] | None = None

    @property
    def hinted(self) -> bool:
        """Whether the prompt holds a hint that training must not see."""
        return self.training_prompt_ids is not None

    @property
    def prompt_ids_for_training(self) -> list[int]:
        """The only prompt that a trainer may read."""
        return self.prompt_ids if self.training_prompt_ids is None else self.training_prompt_ids

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Sample:
        """Read an item of the column `samples`."""
        hinted = row["training_prompt_ids"]
        return cls(
            list(row["prompt_ids"]),
            list(row["ids"]),
            list(row["origins"]),
            list(row["turn_starts"]),
            None if hinted is None else list(hinted),
        )


@dataclass(slots=True)
class Trajectory:
    """Finished rollout.

    Attributes:
        status: One of `STATUSES`.
        text: Everything after the prompt.
        segments: The text in typed pieces. Their `start` and `end` are positions in their sample's ids; 0 without ids.
        samples: Token sequences, in their order: one, and another one after each trim of the context.
        calls: The ledger.
        num_turns: Number of generation calls, those of its prefix included.
        truncated: Whether it ended before its task did.
        turn_rewards: Reward of each turn from the environment; None for those without one.
        outcome: Outcome that the environment returned for the whole episode; None if it returned none.
        first_messages: Messages before the first turn, without the hint; empty if they are not known.
        tools: Tools whose schemas the model was given, with those that were added later at the end.
        num_added_tools: Number of them that were added during the episode.
    """

    status: str
    text: str
    segments: list[Segment]
    samples: list[Sample]
    calls: list[CallRecord]
    num_turns: int
    usage: Usage = field(default_factory=Usage)
    truncated: bool = False
    turn_rewards: list[float | None] = field(default_factory=list)
    outcome: Outcome | None = None
    first_messages: Sequence[Mapping[str, str]] = ()
    tools: Sequence[ToolSchema] = ()
    num_added_tools: int = 0

    def prefix(self, num_segments: int, codec: Codec | None, dialect: Dialect) -> Prefix:
        """Return the first `num_segments` segments as a prefix to continue from.

        The next context is identical, id for id, to that of an uninterrupted rollout. Only trajectories of one sample
        can be continued.
        """
        (sample,) = self.samples
        return cut(self.segments, sample.ids, sample.origins, self.calls, num_segments, dialect, codec)

    def without_turn_end(self) -> Trajectory:
        """Return the trajectory without the end-of-turn id that the model sampled last, so that text can follow."""
        last = self.segments[-1] if self.segments else None
        if last is None or last.kind != FRAME or not self.samples[-1].ids:
            return self
        sample = self.samples[-1]
        cut_sample = replace(sample, ids=sample.ids[: last.start], origins=sample.origins[: last.start])
        text = self.text.removesuffix(last.text)
        return replace(self, text=text, segments=self.segments[:-1], samples=[*self.samples[:-1], cut_sample])

    @property
    def reward(self) -> float | None:
        """Reward of the episode from its environment: the outcome's, else the sum of the turns'; None if unknown."""
        if self.outcome is not None and self.outcome.reward is not None:
            return self.outcome.reward
        known = [reward for reward in self.turn_rewards if reward is not None]
        return sum(known) if known else None

    @property
    def num_output_tokens(self) -> int:
        """Number of ids after the prompts, over all samples."""
        return sum(len(sample.ids) for sample in self.samples)


def split_by_context(
    transcript: Transcript, prompt_ids: Sequence[int], unhinted: Sequence[int] | None
) -> tuple[list[Segment], list[Sample]]:
    """Return the segments and samples of a finished transcript: one sample for each context.

    The offsets of a segment count from the start of its sample's ids. `prompt_ids` is the rollout's prompt, empty in
    text mode; `unhinted` is the prompt without its hint, None if it had no hint.
    """
    segments, contexts = transcript.segments(), list(transcript.contexts)
    if len(contexts) > 1 and contexts[-1].num_segments == len(segments):
        contexts.pop()  # trimmed for a turn in which the model wrote nothing
    split: list[Segment] = []
    samples = []
    for place, one in enumerate(contexts):
        later = contexts[place + 1] if place + 1 < len(contexts) else None
        end = later.num_ids if later else len(transcript.ids)
        turns = transcript.turn_starts[one.num_turns : later.num_turns if later else None]
        own = segments[one.num_segments : later.num_segments if later else None]
        start = one.num_ids
        split += [replace(seg, start=seg.start - start, end=seg.end - start) for seg in own] if start else own
        samples.append(
            Sample(
                [*prompt_ids, *one.ids],
                transcript.ids[start:end].tolist(),
                list(transcript.origins[start:end]),
                [turn - start for turn in turns] if prompt_ids else [],
                None if unhinted is None else [*unhinted, *one.ids],
            )
        )
    return split, samples


def by_sample(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Group segments by sample: the offsets begin at 0 again in each sample. Without ids, all form one group."""
    groups: list[list[Segment]] = [[]]
    for segment in segments:
        if groups[-1] and segment.start < groups[-1][-1].end:
            groups.append([])
        groups[-1].append(segment)
    return groups


def spans_of(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """Return the spans {role, start, end} of a sample; neighbouring segments of the model are one span."""
    spans: list[dict[str, Any]] = []
    for segment in segments:
        role = segment.kind if segment.kind in SYSTEM_KINDS else MODEL_ROLE
        if spans and spans[-1]["role"] == role == MODEL_ROLE:
            spans[-1]["end"] = segment.end
        elif segment.end > segment.start:
            spans.append({"role": role, "start": segment.start, "end": segment.end})
    return spans
