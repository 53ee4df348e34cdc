"""Taking answers out of trajectories and comparing them with gold answers; one implementation for all uses."""
