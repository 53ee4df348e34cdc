"""Garbage of a root: found, judged, and removed beside processes at work."""
