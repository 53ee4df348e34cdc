"""Select rows of Arrow tables by texts, without importing pandas.

`pa.array`, `pa.scalar` and comparisons with Python values import pandas if it is installed, which takes longer than
most commands that only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

import numpy as np
import pyarrow as pa


def texts(values: Iterable[str]) -> pa.Array:
    """Return the values as an array."""
    encoded = [value.encode() for value in values]
    offsets = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(encoded) + 1)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def one_of(values: Iterable[str]) -> Callable[[pa.Array], pa.Array]:
    """Return a function that maps a column to the mask of its rows whose value is one of these."""
    import pyarrow.compute as pc

    wanted = texts(values)
    return lambda column: pc.is_in(column, wanted)
