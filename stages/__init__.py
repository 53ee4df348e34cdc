"""Entries that stages declare to flows, the registries of stages and recipes, and helpers for settings."""
