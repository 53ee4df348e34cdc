"""Graders: scorers that ask a model how good a rollout is."""
