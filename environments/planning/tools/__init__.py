"""Tools of planning agents that the environment `question` lacks: programs with an input, and pictures."""
