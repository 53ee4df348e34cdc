"""Decide what a run does: configuration, plan, phases, iterations, checks before the start."""
