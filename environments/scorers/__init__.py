"""Scorers: rules that say how good a finished rollout is, one per file."""
