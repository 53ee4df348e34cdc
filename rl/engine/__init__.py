"""Code that runs only inside an RL engine's environment; no other package imports TRL or verl."""
