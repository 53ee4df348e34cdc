"""Check verl's saved states before verl loads them, because it unpickles them without any restriction.

The check lists the names that a pickle references, as torch's restricted loader does. It reads a few hundred kB of a
shard and loads nothing.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from treadle.core.errors import EngineError

_ALLOWED_NAMES = frozenset(
    {
        # random states of numpy, in the protocol of torch
        "_codecs.encode",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray._reconstruct",
        "numpy.dtype",
        "numpy.ndarray",
        # states of data loaders and learning rates
        "builtins.set",
        "collections.Counter",
        "collections.defaultdict",
        "collections.deque",
        "datetime.timedelta",
    }
)
"""Harmless names in verl's states, in addition to those that torch allows."""


def check_state(state: Path) -> None:
    """Raise EngineError if a file of a state references code that verl does not write, or is not a file of torch."""
    import torch.distributed.tensor  # noqa: F401 - makes the parts of sharded tensors known
    from torch.serialization import get_unsafe_globals_in_checkpoint

    for path in sorted(state.rglob("*.pt")):
        try:
            named = set(get_unsafe_globals_in_checkpoint(path)) - _ALLOWED_NAMES
        except (EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            raise EngineError(f"{path} is not a state written by verl: {str(error).splitlines()[0]}") from None
        if named:
            raise EngineError(
                f"{path} is not loaded: it references code that no state of verl has ({', '.join(sorted(named)[:5])}); "
                "remove the state to resume from the previous one"
            )
