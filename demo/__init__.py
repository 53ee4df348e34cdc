"""Built-in demo: a sample world, a rule-based stand-in for a model, and a small real model."""
