"""Prefect flows and the `treadle` command line."""
