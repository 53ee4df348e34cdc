"""What runs inside the environment of an RL engine, and nowhere else: TRL and verl are imported here only."""
