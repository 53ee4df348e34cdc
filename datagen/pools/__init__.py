"""The stage `pools`: roll out each question, then repair and condense its trajectories."""
