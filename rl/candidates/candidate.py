"""Convert a completion into a candidate, with the token ids that a rollout would keep of it."""

from __future__ import annotations

from typing import Any

from treadle.agent.dialects.base import Dialect
from treadle.agent.prompt_strategy import dropped_stop
from treadle.agent.token_ids import ORIGIN_REENCODED, ORIGIN_SAMPLED, Codec, keep_prefix
from treadle.core.llm.types import Completion


def candidate_of(completion: Completion, codec: Codec, dialect: Dialect) -> dict[str, Any]:
    """Return the columns of a candidate; its ids are those that a rollout would keep.

    The text ends with its first stop marker. An id that ended the turn is kept. Ids that were encoded here, because of
    that cut or for a stop marker that the server left out, have mask 0.
    """
    ids, end = list(completion.token_ids or ()), []
    while ids and ids[-1] in codec.eos_ids:
        end = [ids.pop()]
    origins = [ORIGIN_SAMPLED] * len(ids)
    text = codec.decode(ids)
    kept = dialect.cut(text)
    if kept != text:
        ids, origins, _ = keep_prefix(codec, ids, origins, kept)
    elif marker := dropped_stop("", completion, dialect):
        added = codec.encode(marker)
        ids, origins, kept = [*ids, *added], [*origins, *[ORIGIN_REENCODED] * len(added)], kept + marker
    if end and not dialect.is_stopped(kept):
        ids, origins = [*ids, *end], [*origins, ORIGIN_SAMPLED]
    mask = [int(origin == ORIGIN_SAMPLED) for origin in origins]
    is_truncated = completion.finish_reason == "length"
    return {"text": kept, "ids": ids, "mask": mask, "num_tokens": sum(mask), "truncated": is_truncated}
