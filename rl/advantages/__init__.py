"""Advantages of candidates for turns, from a critic."""
