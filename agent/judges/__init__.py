"""Judges: they say whether an answer is right. The flywheel uses them while it works, evaluation afterwards."""
