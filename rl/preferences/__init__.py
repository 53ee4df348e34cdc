"""Preferences between trajectories and between turns, from scored rollouts: SWEET-RL (arXiv 2503.15478)."""
