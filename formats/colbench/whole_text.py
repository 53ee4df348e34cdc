"""Find the agent's tokens in a dialogue that is encoded as one text: by offsets, not by the template's markers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from treadle.agent.contract import Message
from treadle.agent.dialects.base import FRAME, Dialect, Segment
from treadle.agent.token_ids import ORIGIN_REENCODED, ORIGIN_SYSTEM
from treadle.agent.trajectory import Sample
from treadle.agent.transcript import Transcript
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.chat import ChatTokenizer
from treadle.datagen.questions.layouts import RowRejected


def dialogue_segments(
    turns: Sequence[str], replies: Sequence[str], dialect: Dialect, codec: ChatTokenizer | None
) -> list[Segment]:
    """Return turns and replies in typed pieces, and the text that the chat template puts between them.

    The offsets of the pieces are not set yet: all are 0.
    """
    transcript = Transcript(dialect, None, reply_text=None if codec is None else codec.reply_text)
    for turn, reply in itertools.zip_longest(turns, replies):
        transcript.insert(turn)
        if reply is not None:
            transcript.append([Message(reply)])
    return transcript.segments()


def encode_dialogue(
    first_messages: Sequence[Mapping[str, str]],
    turns: Sequence[str],
    replies: Sequence[str],
    dialect: Dialect,
    codec: ChatTokenizer,
) -> tuple[list[Segment], Sample]:
    """Return the pieces of a dialogue with their places in its ids, and the ids with their origins.

    The ids are those of the whole conversation as the chat template renders it; if a token crosses the border of a
    turn, each part is encoded alone, as in a rollout. The ids of the agent's text, and the id that ends each of its
    turns, have the origin "re-encoded"; all other ids have the origin "system". Raises RowRejected if the template
    changes messages, other than by stripping white space around them, or if the agent has written nothing.
    """
    roles = itertools.cycle(("assistant", "user"))
    texts = [text for pair in itertools.zip_longest(turns, replies) for text in pair if text is not None]
    dialogue = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    ids = codec.conversation_ids([*first_messages, *dialogue])
    text, prompt = codec.decode(ids), codec.decode(codec.prompt_ids(first_messages))
    for shown in (turns, [turn.strip() for turn in turns]):  # Some templates strip messages.
        segments = dialogue_segments(shown, replies, dialect, codec)
        if text.startswith(prompt + "".join(one.text for one in segments)):
            break
    else:
        raise RowRejected("rewritten", "the chat template changes messages of the dialogue, so they cannot be found")
    places = list(itertools.accumulate((len(one.text) for one in segments), initial=len(prompt)))
    counts = codec.counts_before(ids, text, places)
    start = counts[0]
    found = [
        replace(one, start=begin - start, end=end - start)
        for one, begin, end in zip(segments, counts, counts[1:], strict=False)
    ]
    if all(codec.decode(ids[start + one.start : start + one.end]) == one.text for one in found):
        segments, sample = _with_turn_ends(found, ids, start, codec)
    else:
        segments, sample = _encode_parts(shown, replies, dialect, codec)
        sample.prompt_ids = codec.prompt_ids(first_messages)
    if not any(sample.origins):
        raise RowRejected("empty", "the agent has written nothing in its dialogue")
    return segments, sample


def _with_turn_ends(
    segments: list[Segment], ids: Sequence[int], start: int, codec: ChatTokenizer
) -> tuple[list[Segment], Sample]:
    """Return segments and sample in which the agent's text and the ids that end its turns count as the agent's.

    Ids after the end of the last turn are left out.
    """
    own = list(ids[start:])
    end = segments[-1].end if segments else 0
    if end < len(own) and own[end] in codec.eos_ids:
        segments.append(Segment(FRAME, codec.decode([own[end]]), end, end + 1))
    own = own[: segments[-1].end if segments else 0]
    origins = [ORIGIN_SYSTEM] * len(own)
    turn_starts = []
    was_agent = False
    for segment in segments:
        is_agent = segment.kind not in SYSTEM_KINDS
        if is_agent:
            turn_starts += [] if was_agent else [segment.start]
            origins[segment.start : segment.end] = [ORIGIN_REENCODED] * (segment.end - segment.start)
        elif was_agent and segment.end > segment.start and own[segment.start] in codec.eos_ids:
            origins[segment.start] = ORIGIN_REENCODED
        was_agent = is_agent
    return segments, Sample(list(ids[:start]), own, origins, turn_starts)


def _encode_parts(
    turns: Sequence[str], replies: Sequence[str], dialect: Dialect, codec: ChatTokenizer
) -> tuple[list[Segment], Sample]:
    """Encode each part of a dialogue alone, as a rollout does."""
    ids, num_end = codec.reply_ids([{"role": "user", "content": "."}])
    end = ids[num_end - 1] if num_end else None
    transcript = Transcript(dialect, codec)
    turn_starts = []
    for turn, reply in itertools.zip_longest(turns, replies):
        turn_starts.append(len(transcript.ids))
        transcript.insert(turn)
        transcript.end_turn(end)
        if reply is not None:
            transcript.append([Message(reply)])
    transcript.seal()
    origins = [ORIGIN_REENCODED if origin else ORIGIN_SYSTEM for origin in transcript.origins]
    return transcript.segments(), Sample([], transcript.ids.tolist(), origins, turn_starts)
