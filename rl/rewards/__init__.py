"""Rules that reward the rollouts of a group, one file each, and what they are given."""
