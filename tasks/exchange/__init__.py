"""Export results of a run for other programs, and import results of other programs into a run."""
