"""Recipes: which stages make a flow, and in which order."""
