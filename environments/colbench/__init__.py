"""Environment of ColBench: an agent and a person, who knows more, write a program together."""
