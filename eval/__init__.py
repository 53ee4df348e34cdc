"""Score rollouts, compute statistics over them, and build reports."""
