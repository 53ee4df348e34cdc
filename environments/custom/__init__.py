"""Environments of users' own: the base class that they derive from, and its adapter to the rollout engine."""
