"""Rules that reward the rollouts of a group, one file each, and the types of their arguments and results."""
