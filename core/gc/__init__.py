"""Garbage collection of a storage root: find and delete unreferenced files while other processes work."""
