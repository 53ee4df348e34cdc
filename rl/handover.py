"""Checks of a trained policy before it counts: it must be its start in everything but the values of its weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.training import Greedy
from treadle.core.engines.weight_files import weight_files
from treadle.core.errors import StageFailed

_MOST_HEADER_BYTES = 100 * 1024 * 1024
"""What the format allows."""
_TIED = "lm_head.weight"
"""May be left out where it is the same tensor as the input embeddings."""
_FP32 = "F32"
_SHOWN = 5
DOUBTFUL_MARGIN = 0.5
"""Difference of log-probabilities below which rounding may decide: where computation is in 16 bits, weights are kept in
fp32 while training and written in 16 bits."""


def check_tokenizer(made: Path, start: ChatTokenizer) -> None:
    """Raise StageFailed where the policy's tokenizer or chat template is not that of its start."""
    digest = ChatTokenizer.load(made).digest
    if digest != start.digest:
        raise StageFailed(
            f"the tokenizer or chat template of the policy is not that of its start ({digest[:12]} instead of "
            f"{start.digest[:12]})"
        )


def check_weights(made: Path, start: Path) -> bool:
    """Raise StageFailed where the policy has other tensors than its start, or of other shapes or number types.

    Any may be in fp32, which loses nothing.

    False where it cannot be told, since the start has no safetensors files.
    """
    expected, found = tensors(start), tensors(made)
    if not expected:
        return False
    tied = {_TIED} if _ties_embeddings(made) else set()
    problems = [
        *_named("missing", expected.keys() - found.keys() - tied),
        *_named("added", found.keys() - expected.keys() - tied),
        *_named("of other shape", (name for name in expected.keys() & found if expected[name][1] != found[name][1])),
        *_named(
            "of other type",
            (name for name in expected.keys() & found if found[name][0] not in (expected[name][0], _FP32)),
        ),
    ]
    if problems:
        raise StageFailed(f"the policy is no model like its start: {'; '.join(problems)}")
    return True


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> number type and shape of all tensors that transformers loads from a model's safetensors files, read from
    their heads alone.

    Raises StageFailed for a file that is damaged or missing.
    """
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    try:
        files = weight_files(folder)
    except ValueError as error:
        raise StageFailed(f"{folder.name}: its weights cannot be found: {error}") from None
    for file in files:
        for name, tensor in _header(folder / file).items():
            if name != "__metadata__":
                found[name] = (tensor["dtype"], tuple(tensor["shape"]))
    return found


def check_greedy(live: Greedy | None, written: Greedy | None) -> None:
    """Raise StageFailed where the written policy does not say what the one in training said.

    From the first id on which rounding may decide, the two may part.
    """
    if live is None:
        return
    if written is None:
        raise StageFailed("the written policy was not asked for what it says")
    for place, (id_, said, margin) in enumerate(zip(live.ids, written.ids, live.margins, strict=False)):
        if id_ == said:
            continue
        if margin < DOUBTFUL_MARGIN:
            return
        raise StageFailed(
            f"the written policy says something else than the one in training: id {said} instead of {id_} at place "
            f"{place}, by a margin of {margin:.3g}"
        )
    if len(live.ids) != len(written.ids):
        raise StageFailed(f"the written policy wrote {len(written.ids)} ids instead of {len(live.ids)}")


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MOST_HEADER_BYTES:
                raise ValueError(f"a head of {size} bytes")
            header = json.loads(file.read(size))
        if not isinstance(header, dict):
            raise ValueError("its head is no object")
    except (OSError, struct.error, ValueError) as error:
        raise StageFailed(f"{path.parent.name}/{path.name} is no safetensors file: {error}") from None
    return header


def _ties_embeddings(folder: Path) -> bool:
    # transformers writes the key where it is not its own default, which is true.
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("tie_word_embeddings", True))


def _named(what: str, names: Any) -> list[str]:
    names = sorted(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{len(names)} tensors {what} ({', '.join(names[:_SHOWN])}{more})"] if names else []
