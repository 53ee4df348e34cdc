"""Changes that an edit made to a trajectory, as the viewer shows them."""
