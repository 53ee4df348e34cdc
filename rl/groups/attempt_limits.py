"""Limits of the attempts at rollouts of a training, for its options. Only the standard library is imported."""

DEFAULT_ATTEMPTS = 8
MIN_SURVIVING_SHARE = 0.5
"""Smallest share of the rollouts of a training step that must be left when attempts are exhausted."""
