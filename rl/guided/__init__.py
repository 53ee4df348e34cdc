"""Rollouts in which a critic chooses each turn among several candidates: a diagnostic of the critic."""
