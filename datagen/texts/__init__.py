"""Trajectories that are one whole text: their files, their blocks, and the rules that they must follow."""
