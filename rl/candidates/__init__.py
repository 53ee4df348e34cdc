"""Alternatives for turns of rollouts, sampled from the policy."""
