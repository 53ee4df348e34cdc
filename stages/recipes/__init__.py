"""Recipes: the stages of a flow, in their order."""
