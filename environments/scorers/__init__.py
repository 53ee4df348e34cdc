"""Scorers: rules that rate finished rollouts, one per file."""
