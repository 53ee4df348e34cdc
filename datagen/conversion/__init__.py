"""The stage `conversion`: a teacher rewrites sequential trajectories with plans of parallel calls."""
