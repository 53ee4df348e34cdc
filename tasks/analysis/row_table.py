"""Convert rows of tables to pandas, polars, DuckDB and Arrow."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from treadle.core.errors import ConfigError
from treadle.tasks.analysis.shown import table_html

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars


def _library(name: str) -> Any:
    """Return a library that analysis may use; raise ConfigError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"this needs the package {name}: pip install 'treadle[analysis]'") from error


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of one or several instances in memory. Raises ConfigError for a library that is not installed.

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

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame; integers, booleans and lists keep their types, with nulls as missing."""
        pandas = _library("pandas")
        return self.arrow.to_pandas(types_mapper=pandas.ArrowDtype)

    def to_polars(self) -> polars.DataFrame:
        """Return the rows as a polars DataFrame."""
        found: polars.DataFrame = _library("polars").from_arrow(self.arrow)
        return found

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a relation of DuckDB's default connection."""
        found: duckdb.DuckDBPyRelation = _library("duckdb").from_arrow(self.arrow)
        return found

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`."""
        return self.arrow

    def __repr__(self) -> str:
        names = ", ".join(self.columns)
        return f"<{len(self):,} rows of {names}; to_pandas(), to_polars(), to_duckdb() or to_arrow() hand them out>"

    def _repr_html_(self) -> str:
        return table_html(self.arrow)
