"""Hand rows to the libraries that people analyse with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of one or several instances in memory.

    Attributes:
        arrow: The rows; columns have the types and descriptions of docs/reference/tables.md.
    """

    arrow: pa.Table

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.arrow.column_names)

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`."""
        return self.arrow

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame; integers, booleans and lists keep their types, with nulls as missing."""
        import pandas

        return self.arrow.to_pandas(types_mapper=pandas.ArrowDtype)

    def to_polars(self) -> polars.DataFrame:
        """Return the rows as a polars DataFrame."""
        import polars

        found = polars.from_arrow(self.arrow)
        assert isinstance(found, polars.DataFrame), "a table is no single column"
        return found

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a relation of DuckDB's default connection."""
        import duckdb

        return duckdb.from_arrow(self.arrow)

    def _repr_html_(self) -> str:
        """Return the first and last rows for a notebook; texts of models are escaped."""
        return str(self.to_pandas().to_html(max_rows=10, max_cols=20, notebook=True, escape=True))
