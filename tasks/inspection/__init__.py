"""Inspect runs: single rows and their lineage, an overview of all runs, and the differences between two runs."""
