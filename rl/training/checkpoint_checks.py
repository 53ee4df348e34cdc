"""Check a trained policy before it is accepted: it must match its base model in everything but the weights' values."""

from __future__ import annotations

import json
import logging
import shutil
import struct
from pathlib import Path
from typing import Any, Protocol

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.training import Greedy
from treadle.core.engines.weights.files import weight_files
from treadle.core.errors import StageFailed, TreadleError
from treadle.core.store.storage import storage_errors

_log = logging.getLogger(__name__)

_MAX_HEADER_BYTES = 100 * 1024 * 1024
"""Maximum size of the header of a safetensors file in bytes, a limit of the format."""
_TIED = "lm_head.weight"
"""Tensor that a file may omit if it is the same tensor as the input embeddings."""
_FP32 = "F32"
_SHOWN = 5
DOUBTFUL_MARGIN = 0.5
"""Difference of log-probabilities below which rounding may change the greedy token. In 16-bit computation, weights
are kept in fp32 during training and written in 16 bits."""


class Exported(Protocol):
    """Finished training of a policy whose model was written."""

    @property
    def model(self) -> Path:
        """Folder of the model."""
        ...

    @property
    def greedy(self) -> Greedy | None:
        """Greedy completion by the written model."""
        ...

    @property
    def live_greedy(self) -> Greedy | None:
        """Greedy completion of the same prompt by the model in training."""
        ...


def check_exported(done: Exported, start: Path, tokenizer: ChatTokenizer, *, moved_to: Path, address: str) -> None:
    """Raise StageFailed if the exported policy does not match its base model or the policy in training.

    The exported folder is then moved to `moved_to`, so that the next attempt exports the policy again.
    """
    try:
        check_tokenizer(done.model, tokenizer)
        if not check_weights(done.model, start):
            _log.warning("%s has no safetensors files, so names and shapes were not compared", start)
        check_greedy(done.live_greedy, done.greedy)
    except TreadleError as failure:
        with storage_errors("move", done.model):
            shutil.rmtree(moved_to, ignore_errors=True)
            done.model.rename(moved_to)
        raise StageFailed(
            f"{address}: {failure}; see {moved_to}. The next attempt exports it again from the trained state; "
            f"`treadle stage {address} --force` trains again"
        ) from None


def check_tokenizer(made: Path, start: ChatTokenizer) -> None:
    """Raise StageFailed if the policy's tokenizer or chat template differs from its base model's."""
    digest = ChatTokenizer.load(made).digest
    if digest != start.digest:
        raise StageFailed(
            f"the policy's tokenizer or chat template differs from its base model's ({digest[:12]} instead of "
            f"{start.digest[:12]})"
        )


def check_weights(made: Path, start: Path) -> bool:
    """Raise StageFailed if the policy's tensors differ from its base model's in names, shapes or number types.

    A tensor in fp32 is always accepted, because fp32 loses no precision. Returns False if the comparison is not
    possible because the base model has no safetensors files.
    """
    expected, found = tensors(start), tensors(made)
    if not expected:
        return False
    tied = {_TIED} if _ties_embeddings(made) else set()
    problems = [
        *_named("missing", expected.keys() - found.keys() - tied),
        *_named("added", found.keys() - expected.keys() - tied),
        *_named(
            "with another shape", (name for name in expected.keys() & found if expected[name][1] != found[name][1])
        ),
        *_named(
            "with another number type",
            (name for name in expected.keys() & found if found[name][0] not in (expected[name][0], _FP32)),
        ),
    ]
    if problems:
        raise StageFailed(f"the trained policy does not match its base model: {'; '.join(problems)}")
    return True


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the number type and shape of each tensor in a model's safetensors files, by name.

    Covers the files that transformers loads; only their headers are read. Raises StageFailed for a damaged or missing
    file.
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
    """Raise StageFailed if the exported policy's greedy completion is not that of the policy in training.

    The two may differ from the first id at which rounding may decide. If there is no completion of the policy in
    training, nothing is checked; if only the exported policy's is missing, StageFailed is raised.
    """
    if live is None:
        return
    if written is None:
        raise StageFailed("cannot verify the exported policy: the engine reported no greedy completion of it")
    for place, (id_, said, margin) in enumerate(zip(live.ids, written.ids, live.margins, strict=False)):
        if id_ == said:
            continue
        if margin < DOUBTFUL_MARGIN:
            return
        raise StageFailed(
            f"the exported policy continues differently from the one in training: id {said} instead of {id_} at "
            f"position {place}, by a margin of {margin:.3g}"
        )
    if len(live.ids) != len(written.ids):
        raise StageFailed(f"the exported policy generated {len(written.ids)} ids instead of {len(live.ids)}")


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ValueError(f"its header has {size} bytes")
            header = json.loads(file.read(size))
        if not isinstance(header, dict):
            raise ValueError("its header is not an object")
    except (OSError, struct.error, ValueError) as error:
        raise StageFailed(f"{path.parent.name}/{path.name} is not a valid safetensors file: {error}") from None
    return header


def _ties_embeddings(folder: Path) -> bool:
    # transformers writes the key only if it differs from the config's default, which is true.
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("tie_word_embeddings", True))


def _named(what: str, names: Any) -> list[str]:
    names = sorted(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{len(names)} tensors {what} ({', '.join(names[:_SHOWN])}{more})"] if names else []
